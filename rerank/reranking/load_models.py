"""Loads the rankers of the configured models, and self-tests each of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rerank.checkpoints import bundled
from rerank.checkpoints.load_errors import LOADING, loading
from rerank.checkpoints.manifest import TEMPLATE_FILE, read_manifest, stated_ranker
from rerank.checkpoints.publisher_prompt import read_words, template_of
from rerank.config import (
    ApiModel,
    CrossEncoderModel,
    E2RankModel,
    EncoderConfig,
    FirstModel,
    FusionInDecoderModel,
    FusionModel,
    GenerationModel,
    IdentityModel,
    JinaListwiseModel,
    LanguageModel,
    LateInteractionModel,
    ModelConfig,
    PERankModel,
)
from rerank.config.models import E2RANK_INSTRUCTION, SCHEDULE_SETTINGS
from rerank.errors import CheckpointError, ConfigError, RerankError, SelfTestFailed
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.loading import load_tokenizer_of, pick_device
from rerank.models.projector import write_zero_init_checkpoint
from rerank.models.sparse_encoder import SparseEncoder
from rerank.profiles import PairPrompt, load_profile, names
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.published import PREFIX
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import Template, load_template, parse_template
from rerank.rankers import self_test
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.rankers.e2rank import E2RankPrompts, E2RankRanker
from rerank.rankers.failed import FailedRanker, unknown_info
from rerank.rankers.first import FirstPrompts, FirstRanker, first_settings
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.fusion_in_decoder import FusionInDecoderRanker
from rerank.rankers.generation import GenerationPrompts, GenerationRanker
from rerank.rankers.identity import IdentityRanker
from rerank.rankers.jina_listwise import JinaListwiseRanker
from rerank.rankers.late_interaction import LateInteractionRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.remote import RemoteE2Rank, RemoteFirst, RemoteGeneration, RemoteModel
from rerank.rankers.remote_server import ApiRanker
from rerank.types import ScoreKind
from rerank.util.files import cached_folder, sha256_of_files
from rerank.util.memory import gpu_memory_bytes, memory_bytes
from rerank.util.time_limit import BlockedByHungCall, within

log = logging.getLogger(__name__)

LoadSparseEncoder: TypeAlias = Callable[[], SparseEncoder]

#: End token of E2Rank's passages, which the published tokenizers do not add.
E2RANK_END_TOKEN = "<|endoftext|>"
#: Number of passages of a window in E2Rank's prompt, as in the paper.
_E2RANK_PASSAGES = 20


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A ranker with its description, and the time and memory of loading it.

    Attributes:
        load_s: duration of loading and testing the model, in seconds.
        memory_bytes: growth of the process's memory in bytes; 0 if it is unknown or the model is not loaded yet.
        gpu_memory_bytes: growth of its memory on GPUs in bytes, with the memory that the first batches reserve.
    """

    ranker: Ranker
    info: RankerInfo
    load_s: float = 0.0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0


@dataclass(frozen=True)
class ModelLoader:
    """Loads the models of a service.

    Args:
        encoder, device: the service's encoder and device.
        sparse_encoder: returns the learned sparse encoder, which the first call loads; called for models that read its
            scores.
        max_load_s: longest time in seconds that loading a model may take.
    """

    encoder: Encoder
    device: str
    sparse_encoder: LoadSparseEncoder = SparseEncoder
    max_load_s: float = threading.TIMEOUT_MAX

    def load(self, model: ModelConfig) -> LoadedModel:
        """Loads and self-tests a model. A model that cannot be loaded, or fails its self-test, gets a FailedRanker.

        So all other models are served even if a library raises any exception for a damaged folder, or hangs. Threads
        load models one at a time, and the time limit does not count the wait for other threads. A model in inference
        servers is tested when the service opens and whenever a server comes back.
        """
        try:
            return within(self.max_load_s, partial(self._load, model), LOADING)
        except BlockedByHungCall:
            problem = "models are loaded one at a time, and another one hangs while it is loaded; restart the service"
        except TimeoutError:
            problem = f"loading takes more than {self.max_load_s:g} s; copy the checkpoint again, or set max_load_s"
        return _failed(model, unknown_info(model.ranker, model.name), CheckpointError(problem))

    def _load(self, model: ModelConfig) -> LoadedModel:
        before, gpu_before, start_s = memory_bytes(), gpu_memory_bytes(), time.monotonic()
        loaded = self._load_and_test(model)
        return replace(
            loaded,
            load_s=time.monotonic() - start_s,
            memory_bytes=max(0, memory_bytes() - before),
            gpu_memory_bytes=max(0, gpu_memory_bytes() - gpu_before),
        )

    def _load_and_test(self, model: ModelConfig) -> LoadedModel:
        info = unknown_info(model.ranker, model.name)
        try:
            located = with_path(model, self.encoder)
            ranker = _load(located, self.encoder, self.device, self.sparse_encoder)
            _check_window(located, ranker.info)
            info = _described(located, ranker.info)
            if not ranker.info.max_in_flight:
                _self_test(ranker, located, self.device)
            return LoadedModel(ranker, info)
        except BaseException as error:  # a panic of Rust code is not an Exception
            return _failed(model, info, error)


def _failed(model: ModelConfig, info: RankerInfo, error: BaseException) -> LoadedModel:
    if not isinstance(error, RerankError):
        log.error("bug: loading model %s", model.name, exc_info=error)
        error = CheckpointError(f"{type(error).__name__}: {error}; this is a bug")
    kind = type(error) if isinstance(error, CheckpointError | SelfTestFailed) else CheckpointError
    return LoadedModel(FailedRanker(model.name, info, str(error), kind), info)


def _check_window(model: ModelConfig, info: RankerInfo) -> None:
    """Raises: CheckpointError if the window size in the settings or the manifest is larger than the model reads."""
    size = model.read_window_size()
    is_stated = "window_size" in model.model_fields_set or size != model.window_size
    if is_stated and size > info.max_window_size:
        raise CheckpointError(
            f"window_size {size} exceeds the {info.max_window_size} passages that the model reads; use "
            f"at most {info.max_window_size}"
        )


def _load(model: ModelConfig, encoder: Encoder, device: str, sparse_encoder: LoadSparseEncoder) -> Ranker:
    if isinstance(model, E2RankModel) and model.served_by:
        return _load_served_e2rank(model, encoder)
    if isinstance(model, ApiModel) or (isinstance(model, FirstModel | GenerationModel) and model.served_by):
        return load_remote(model)
    return load_ranker(model, encoder, device, sparse_encoder)


def _described(model: ModelConfig, info: RankerInfo) -> RankerInfo:
    """The description of a ranker with the warnings of its model; logs precision, licence and warnings."""
    if info.precision:
        log.info("model %s computes in %s", model.name, info.precision)
    if profile := getattr(model, "profile", None):
        log.info("model %s: the licence of %s is: %s", model.name, profile, load_profile(profile).licence)
    if warning := "; ".join(filter(None, (_warning(model, info), _line_end_warning(model)))):
        log.warning("model %s: %s", model.name, warning)
    return replace(info, warning=warning)


def scoring_settings(model: ModelConfig) -> dict[str, object]:
    """The settings on which the scores of a model depend, besides weights, template and precision."""
    excluded = {
        "path",
        "template",
        "prompt",
        "precision",
        "profile",
        "served_by",
    }  # the template's hash covers `prompt`
    if isinstance(model, PERankModel):
        excluded.add("lexical_weight")  # the words are added to the scores
    return model.model_dump(mode="json", exclude=excluded | SCHEDULE_SETTINGS)


def with_path(model: ModelConfig, encoder: Encoder) -> ModelConfig:
    """The settings of a model with the path of its checkpoint, which has a default for PE-Rank and E2Rank.

    PE-Rank's is the bundled checkpoint for the default encoder, for which it was trained, and a zero-initialised
    checkpoint for any other encoder. E2Rank's is the encoder's folder.
    """
    if isinstance(model, E2RankModel) and model.path is None:
        return model.model_copy(update={"path": encoder.folder})
    if not isinstance(model, PERankModel) or model.path is not None:
        return model
    path = bundled.PE_RANK if encoder.id.name == DEFAULT_ENCODER else zero_init_checkpoint(encoder)
    return model.model_copy(update={"path": path})


def zero_init_checkpoint(encoder: Encoder) -> Path:
    """The folder of the zero-initialised PE-Rank checkpoint for an encoder, written to the user's cache if missing."""
    name = f"pe-rank-zero-init-{encoder.id.vectors_sha256[:12]}"
    return cached_folder(name, lambda folder: write_zero_init_checkpoint(encoder, folder))


def load_ranker(
    model: ModelConfig, encoder: Encoder, device: str, sparse_encoder: LoadSparseEncoder = SparseEncoder
) -> Ranker:
    """Loads the ranker of a model that runs in this process, and whose path `with_path` has set.

    Raises:
        ConfigError: a setting of the model cannot be used.
        CheckpointError: its checkpoint cannot be loaded.
    """
    path = model.checkpoint
    with loading("checkpoint", path) if path else nullcontext():
        return _load_ranker(model, encoder, device, sparse_encoder)


def _load_ranker(model: ModelConfig, encoder: Encoder, device: str, sparse_encoder: LoadSparseEncoder) -> Ranker:
    match model:
        case IdentityModel():
            return IdentityRanker()
        case FusionModel():
            return FusionRanker(model, encoder, sparse_encoder() if model.sparse_weight else None)
        case PERankModel():
            if model.path is None:
                raise ConfigError(f"model {model.name} has no path; this is a bug")
            read_manifest(model.path)  # checks the other files in the folder
            return _load_pe_rank(model, model.path, encoder, device)
        case E2RankModel():
            return _load_e2rank(model, encoder, device)
        case FirstModel():
            return load_first(model, device)
        case GenerationModel():
            template, kind = _generation_prompt(model)
            return GenerationRanker(model.path, template, kind, device, model.precision, model.thinking_tokens)
        case FusionInDecoderModel():
            return _load_fusion_in_decoder(model, device)
        case JinaListwiseModel():
            return _load_jina_listwise(model, device)
        case CrossEncoderModel():
            return CrossEncoderRanker(model.path, device, model.precision, _pair_prompt(model))
        case LateInteractionModel():
            return LateInteractionRanker(model.path, device, model.precision, encoder.vector_cache.max_bytes)
        case ApiModel():
            raise ConfigError(f"model {model.name} does not run in this process; this is a bug")


def _pair_prompt(model: CrossEncoderModel) -> PairPrompt | None:
    """The prompt in a model's profile, with the publisher's words if the profile says where they are; None without."""
    profile = load_profile(model.profile) if model.profile else None
    if profile is None or profile.pair is None or profile.publisher_prompt is None:
        return profile.pair if profile else None
    return profile.pair.with_words(read_words(profile.publisher_prompt, model.path))


def _load_fusion_in_decoder(model: FusionInDecoderModel, device: str) -> FusionInDecoderRanker:
    """Raises: ConfigError if no profile states the prompt of the model."""
    profile = load_profile(model.profile) if model.profile else None
    if profile is None or profile.passage_prompt is None:
        known = " or ".join(name for name in names() if load_profile(name).passage_prompt)
        raise ConfigError(f"model {model.name}: its prompt is in a profile, and it names none; add profile: {known}")
    style = PromptStyle.model_validate(profile.prompt)
    return FusionInDecoderRanker(model.path, profile.passage_prompt, style, model.window_size, device, model.precision)


def _load_jina_listwise(model: JinaListwiseModel, device: str) -> JinaListwiseRanker:
    """Raises: ConfigError if no profile states the limits of the model, or the words of its prompt are not found."""
    profile = load_profile(model.profile) if model.profile else None
    if profile is None or profile.blocks is None or profile.publisher_prompt is None:
        known = " or ".join(name for name in names() if load_profile(name).blocks)
        raise ConfigError(f"model {model.name}: its limits are in a profile, and it names none; add profile: {known}")
    if model.template is None:
        words = read_words(profile.publisher_prompt, model.path)
        template = parse_template(template_of(words).decode(), "of the publisher")
    else:
        template = load_template(model.template)
    return JinaListwiseRanker(model.path, template.with_style(model.prompt), profile.blocks, device, model.precision)


def _load_pe_rank(model: PERankModel, path: Path, encoder: Encoder, device: str) -> PERankRanker:
    """Loads a PE-Rank model. Raises: ConfigError if lexical_weight is set, and decoding is dynamic."""
    ranker = PERankRanker(
        path,
        encoder,
        device,
        model.decoding,
        model.template,
        precision=model.precision,
        style=model.prompt,
        lexical_weight=model.lexical_weight,
    )
    is_set = "lexical_weight" in model.model_fields_set and model.lexical_weight
    if is_set and ranker.info.score_kind is ScoreKind.RANK:
        raise ConfigError(
            f"model {model.name}: lexical_weight {model.lexical_weight:g} has no effect, as dynamic decoding gives no "
            "scores; leave it out, or set decoding: one_step"
        )
    return ranker


def _load_e2rank(model: E2RankModel, encoder: Encoder, device: str) -> E2RankRanker:
    is_encoder = _has_weights_of(encoder, model.path)
    own = encoder if is_encoder else Encoder(_e2rank_encoder(model), device, encoder.vector_cache.max_bytes)
    return E2RankRanker(own, is_encoder, *_e2rank_prompt(model), model.precision)


def _e2rank_prompt(model: E2RankModel) -> tuple[Template, str, int]:
    """Template, instruction and number of passages in a prompt. Raises: see `_instruction`."""
    template = load_template(model.template or "e2rank").with_style(model.prompt)
    return template, _instruction(model), _E2RANK_PASSAGES


def _instruction(model: E2RankModel) -> str:
    """The instruction in the settings if they have one, otherwise that of the model's training, or the default.

    Raises:
        CheckpointError: the model's files differ from its manifest.
    """
    trained = read_manifest(model.path) if model.path else None
    return trained.instruction if trained and "instruction" not in model.model_fields_set else model.instruction


def _has_weights_of(encoder: Encoder, folder: Path | None) -> bool:
    weights = sorted(folder.glob("*.safetensors")) if folder else []
    return bool(weights) and sha256_of_files(weights) == encoder.id.sha256


def _e2rank_encoder(model: E2RankModel) -> EncoderConfig:
    """The encoder settings of an E2Rank model. Published folders lack pooling and end token, which are added."""
    if (Path(model.path or "") / "modules.json").is_file():
        return EncoderConfig(name=str(model.path))
    return EncoderConfig(name=str(model.path), pooling="lasttoken", end_token=E2RANK_END_TOKEN)


def _load_served_e2rank(model: E2RankModel, encoder: Encoder) -> RemoteE2Rank:
    served, prompt = _on_servers(model), _e2rank_prompt(model)
    return RemoteE2Rank(
        served,
        lambda tokens: E2RankPrompts(served.tokenizer, tokens, *prompt),
        E2RANK_END_TOKEN,
        encoder if _has_weights_of(encoder, model.path) else None,
    )


def load_first(model: FirstModel, device: str) -> FirstRanker:
    """Loads a FIRST model in this process, without an encoder. Raises: see `load_ranker`."""
    settings = first_settings(model)
    return FirstRanker(
        model.path, settings.template, settings.identifiers, device, model.precision, settings.passage_tokens
    )


def load_remote(model: FirstModel | GenerationModel | ApiModel) -> Ranker:
    """The ranker of a model that runs in inference servers, which are not called yet.

    Raises:
        ConfigError: a setting of the model cannot be used.
        CheckpointError: the model's tokenizer cannot be loaded, or does not fit.
    """
    if model.served_by is None:
        raise ConfigError(f"model {model.name} has no served_by; this is a bug")
    if isinstance(model, ApiModel):
        return ApiRanker(model.name, model.served_by, model.window_size, model.served_by.api_key())
    served = _on_servers(model)
    tokenizer = served.tokenizer
    if isinstance(model, GenerationModel):
        template, kind = _generation_prompt(model)
        return RemoteGeneration(
            served, lambda tokens: GenerationPrompts(tokenizer, tokens, template, kind, model.thinking_tokens)
        )
    settings = first_settings(model)
    prompt = (settings.template, settings.identifiers, settings.passage_tokens)
    return RemoteFirst(served, lambda tokens: FirstPrompts(tokenizer, tokens, *prompt))


def _on_servers(model: FirstModel | GenerationModel | E2RankModel) -> RemoteModel:
    if model.served_by is None or model.path is None:
        raise ConfigError(f"model {model.name} has no served_by or no path; this is a bug")
    tokenizer = load_tokenizer_of(model.path)
    has_golden = (model.path / self_test.GOLDEN).is_file()
    revision = sha256_of_files(sorted(model.path.glob("*.safetensors"))) if has_golden else ""
    tolerance = self_test.tolerance("cuda", model.precision)
    check = partial(self_test.check, settings=scoring_settings(model), folder=model.path, allowed=tolerance)
    return RemoteModel(model.name, model.served_by, model.served_by.api_key(), tokenizer, revision, check)


def _generation_prompt(model: GenerationModel) -> tuple[Template, IdentifierKind]:
    template = load_template(model.template or "first").with_style(model.prompt)
    return template, IdentifierKind(model.identifiers or "numbers")


def _warning(model: ModelConfig, info: RankerInfo) -> str:
    """The warning that a model is not used as it was trained, or may not reach published figures; empty without."""
    if isinstance(model, FirstModel) and model.path is not None and stated_ranker(model.path) == "first":
        return ""  # the model was trained with this prompt
    if not isinstance(model, LanguageModel) or isinstance(model, PERankModel | JinaListwiseModel) or not model.profile:
        return info.warning
    if isinstance(model, E2RankModel):
        ours = model.instruction == E2RANK_INSTRUCTION
        source = load_profile(model.profile).prompt_source
        return f"the instruction is ours; set the publisher's ({source})" if ours else info.warning
    template = model.template or "of the service"
    if template.startswith(PREFIX) or Path(template).is_file():
        return info.warning
    return (
        f"profile {model.profile} needs its publisher's prompt ({load_profile(model.profile).prompt_source}), but "
        f"template {template} is ours: its published figures are not reached; leave `template` out"
    )


def _line_end_warning(model: ModelConfig) -> str:
    """The warning of parts of a template.yaml with more or fewer line ends than the publisher's prompt; or empty."""
    if not isinstance(model, LanguageModel) or model.profile is None or model.path is None:
        return ""
    stated, own = load_profile(model.profile).line_ends, str(model.path / TEMPLATE_FILE)
    if not stated or model.template != own:
        return ""
    template = load_template(own)
    wrong = []
    for part, ends in stated.items():
        text = str(getattr(template, part))
        if (found := len(text) - len(text.rstrip("\n"))) != ends:
            wrong.append(f"{part} ends with {found} line ends, not {ends}")
    if not wrong:
        return ""
    return (
        f"{own} differs from its publisher's prompt: {', '.join(wrong)}; in YAML, | keeps one line end of a text, "
        "|+ all and |- none"
    )


def _self_test(ranker: Ranker, model: ModelConfig, device: str) -> None:
    if (folder := model.checkpoint) is not None:
        tolerance = self_test.tolerance(pick_device(device).type, ranker.info.precision)
        ranker = ranker.with_little_thinking() if isinstance(ranker, GenerationRanker) else ranker
        self_test.check(ranker, scoring_settings(model), folder, tolerance)
