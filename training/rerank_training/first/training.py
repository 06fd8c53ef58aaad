"""Trains a FIRST ranker: from the arguments of `train-first` to a checkpoint that can be served."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from peft.utils.constants import EMBEDDING_LAYER_NAMES
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from rerank.checkpoints.adapters import with_adapter
from rerank.checkpoints.bundled import SMOLLM2
from rerank.checkpoints.hub import is_hub_name
from rerank.checkpoints.load_errors import loading
from rerank.checkpoints.manifest import TEMPLATE_FILE, CheckpointManifest, read_manifest
from rerank.checkpoints.settings_files import ADAPTER_FILE, check_settings, read_settings
from rerank.config import FirstModel, load_config
from rerank.config.hub_models import download_models
from rerank.errors import ConfigError
from rerank.models.loading import base_model_of, check_findable, context_tokens_of, has_tokenizer, load_weights
from rerank.models.smollm2 import locate_causal_lm
from rerank.models.tokenizer import load_tokenizer
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import TEXT_FIELDS, Template, load_template
from rerank.rankers.first import trained_style
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import FirstCollator, FirstObjective, PromptSettings, joint_rank_weight
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import add_adapter, base_folder, base_revision, setting
from rerank_training.trainer.flags import WINDOW_SIZE
from rerank_training.trainer.losses import rank_loss_named
from rerank_training.trainer.ranking_trainer import RankingTrainer
from rerank_training.trainer.run import result_folder, train_checkpoint
from rerank_training.trainer.windows import held_out_windows, read_training_lists, training_windows, with_filled_windows

logger = logging.getLogger(__name__)

#: Defaults for a base without a manifest.
_TEMPLATE, _PASSAGE_TOKENS = "first", 256


def train_first(arguments: FirstArguments, settings: RunArguments) -> Path:
    """Trains and returns the folder of the checkpoint, which `rerank serve --model NAME=FOLDER` serves.

    Raises:
        ConfigError, CollectionError, CheckpointError: an input cannot be used, or the run is finished already.
    """
    rank_loss = rank_loss_named(arguments.rank_loss)
    folder = result_folder(settings.output_dir)
    trained = _check_base(arguments.base)
    prompt = prompt_settings(arguments, trained)
    arguments = replace(arguments, window_size=prompt.window_size)
    lists, held_out = read_training_lists(arguments)
    arguments = with_filled_windows(arguments, lists, trained)
    set_seed(settings.seed)  # for the initial weights of the adapter
    model, tokenizer = load_base(arguments, settings.bf16)
    settings.complete_learning_rate(has_adapter=isinstance(model, PeftModel))
    collator = make_collator(arguments, prompt, model, tokenizer)
    windows = training_windows(arguments, settings, lists)
    objective = FirstObjective(
        objective=arguments.objective,
        rank_loss=rank_loss,
        rank_weight=joint_rank_weight(arguments),
        identifier_ids=collator.identifiers.token_ids,
    )
    trainer = RankingTrainer(
        objective,
        model=model,
        args=settings,
        train_dataset=windows,
        eval_dataset=held_out_windows(arguments, held_out),
        data_collator=collator,
        processing_class=tokenizer,
    )
    base = model.active_peft_config.base_model_name_or_path if isinstance(model, PeftModel) else arguments.base
    return train_checkpoint(
        trainer,
        folder,
        "first",
        arguments,
        tokenizer,
        prompt.template,
        base=base,
        base_revision=base_revision(base),
        identifiers=prompt.identifiers.value,
        passage_tokens=prompt.passage_tokens,
        prompt=prompt.template.style.stated,
    )


def _check_base(base: str) -> CheckpointManifest | None:
    """Checks the base, and returns its manifest if it is a FIRST checkpoint that has one.

    Raises:
        CheckpointError: the manifest is invalid, or does not agree with the files of the base.
        ConfigError: the base is a PE-Rank checkpoint or cannot be found, or it is an adapter whose base cannot be
            found.
    """
    if base != SMOLLM2:
        check_findable(base, f"--base {base}", f"give the folder of a causal language model, or {SMOLLM2}")
    folder = base_folder(base)
    settings = read_settings(folder / "config.json")
    # PE-Rank checkpoints: published ones have a model type of their own, those of this package may lack a tokenizer.
    # One of this package with a tokenizer has a whole causal LM, which can be the base.
    is_published = str(settings.get("model_type")).startswith("embed_")
    is_ours = "encoder_name" in settings and not has_tokenizer(folder)
    manifest = read_manifest(folder)
    if (manifest and manifest.ranker == "pe-rank") or is_published or is_ours:
        raise ConfigError(
            f"--base {base} is a PE-Rank checkpoint, which reads vectors; train it by train-pe-rank, or give a causal "
            f"language model, such as {SMOLLM2}"
        )
    if (folder / ADAPTER_FILE).is_file() and (name := base_model_of(folder)) != SMOLLM2:
        check_findable(name, f"--base {base}", f"give the folder of a causal language model, or {SMOLLM2}")
    return manifest if manifest and manifest.ranker == "first" else None


def prompt_settings(arguments: FirstArguments, trained: CheckpointManifest | None) -> PromptSettings:
    """The settings of the prompts. Warns of a flag that differs from the manifest of the base, with both values.

    Args:
        trained: manifest of the base; None if the base is no FIRST checkpoint or has no manifest.

    Raises:
        ConfigError: there is no such template or profile.
    """
    style = trained_style(base_folder(arguments.base), trained)
    if (published := _published(arguments)) is not None:
        arguments, style = _with_profile(arguments, published), published.prompt
    settings = PromptSettings(
        _template(arguments, trained).with_style(style),
        IdentifierKind(setting("identifiers", arguments.identifiers, trained, "letters")),
        setting("window_size", arguments.window_size or None, trained, WINDOW_SIZE),
        setting("passage_tokens", arguments.passage_tokens, trained, _PASSAGE_TOKENS),
    )
    if trained is not None:
        logger.info(
            "the base %s has a manifest; prompts have template %s, %s, windows of %d passages and %d tokens a passage",
            *(arguments.base, settings.template.sha256[:12], settings.identifiers),
            *(settings.window_size, settings.passage_tokens),
        )
    return settings


def _published(arguments: FirstArguments) -> FirstModel | None:
    """The settings with which `rerank serve` would serve the base; None if they have no profile.

    The profile is that of --profile, or the one of the base's name on the hub.

    Raises: ConfigError, CheckpointError: see `download_models`.
    """
    if arguments.profile is None and not is_hub_name(arguments.base):
        return None
    settings = {"name": "base", "ranker": "first", "path": arguments.base, "profile": arguments.profile}
    (model,) = download_models(load_config(None, models=[settings])).models  # with the publisher's prompt
    if not isinstance(model, FirstModel):
        raise ValueError(f"profile {arguments.profile} gives {model.ranker}; this is a bug")
    return model if model.profile else None


def _with_profile(arguments: FirstArguments, published: FirstModel) -> FirstArguments:
    """The arguments; those that no flag sets have the values of the profile."""
    return replace(
        arguments,
        template=arguments.template or published.template,
        identifiers=arguments.identifiers or published.identifiers,
        window_size=arguments.window_size or published.window_size,
        passage_tokens=0 if arguments.passage_tokens is None else arguments.passage_tokens,
    )


def _template(arguments: FirstArguments, base: CheckpointManifest | None) -> Template:
    if base is None:
        return load_template(arguments.template or _TEMPLATE, TEXT_FIELDS)
    path = base_folder(arguments.base) / TEMPLATE_FILE
    trained = load_template(str(path))
    if arguments.template is None:
        return trained
    given = load_template(arguments.template)
    if given.sha256 != trained.sha256:
        logger.warning(
            "--template %s (%s): the base was trained with %s (%s), so it has to learn the difference; leave "
            "--template out to keep the base's",
            *(arguments.template, given.sha256[:12], path, trained.sha256[:12]),
        )
    return given


def load_base(
    arguments: FirstArguments, bf16: bool = False
) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """The model to train, with an adapter if one is requested or the base is one.

    Trained weights are float32. Frozen weights are bfloat16 if `bf16` is set: mixed precision computes in bfloat16
    anyway, and they take half the memory.

    Raises:
        CheckpointError: the base cannot be loaded as a causal language model.
        ConfigError: `lora_rank` differs from the rank of the base's adapter.
    """
    folder = base_folder(arguments.base, weights=True)
    is_adapter = (folder / ADAPTER_FILE).is_file()
    has_adapter = is_adapter or arguments.lora_rank > 0
    name = base_model_of(folder) if is_adapter else arguments.base
    # The adapter stores the path of its base, which must be absolute because any working directory may serve it.
    name = str(Path(name).resolve()) if name != SMOLLM2 and Path(name).is_dir() else name
    with loading("causal language model", folder):
        located = locate_causal_lm(name)
        check_settings(Path(located))
        model: Any = load_weights(located, torch.bfloat16 if bf16 and has_adapter else torch.float32)
        tokenizer = load_tokenizer(folder if is_adapter and has_tokenizer(folder) else located)
        model.name_or_path = name
        if is_adapter:
            model = with_adapter(model, folder, "CAUSAL_LM", is_trainable=True)
            _check_rank(arguments, model)
    if arguments.lora_rank and not is_adapter:
        model = add_adapter(model, arguments.lora_rank)
    if isinstance(model, PeftModel):
        _save_without_embeddings(model)
    return model, tokenizer


def _save_without_embeddings(model: PeftModel) -> None:
    """Leaves the embeddings of the base out of saves of the adapter, unless they are a part of the adapter.

    peft otherwise looks for the base at each save, in the working directory and on the hub, to compare vocabularies,
    and warns if it finds none. A training never changes the vocabulary.
    """
    targets = model.active_peft_config.target_modules
    if not isinstance(targets, str) and not set(EMBEDDING_LAYER_NAMES) & set(targets or ()):
        cast(Any, model).save_pretrained = partial(model.save_pretrained, save_embedding_layers=False)


def _check_rank(arguments: FirstArguments, model: PeftModel) -> None:
    rank = model.active_peft_config.r
    if arguments.lora_rank not in (0, rank):
        raise ConfigError(
            f"--lora-rank {arguments.lora_rank}: the adapter in {arguments.base} has rank {rank}, which it "
            "keeps; leave --lora-rank out, or start from a base without an adapter"
        )


def make_collator(
    arguments: FirstArguments, prompt: PromptSettings, model: Any, tokenizer: PreTrainedTokenizerBase
) -> FirstCollator:
    """The collator of a training. Raises: ConfigError if windows can have more passages than there are identifiers."""
    context_tokens = context_tokens_of(model, tokenizer, Path(arguments.base))
    collator = FirstCollator(tokenizer, prompt, context_tokens, with_answer=arguments.objective != "rank")
    if arguments.window_size > (found := len(collator.identifiers)):
        raise ConfigError(
            f"--window-size {arguments.window_size} exceeds the {found} single-token identifiers of {arguments.base}; "
            f"use at most {found}"
        )
    return collator
