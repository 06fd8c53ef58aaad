"""FIRST (Reddy et al., EMNLP 2024) ranks a window by the logits of its identifiers, in one forward pass.

The prompt ends with an opening bracket, so the model's next token would be the identifier of the best passage. Its
log-probabilities over the identifiers of the window rank all passages; nothing is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.bundled import SMOLLM2
from rerank.checkpoints.manifest import MANIFEST_FILE, TEMPLATE_FILE, CheckpointManifest, model_id, read_manifest
from rerank.config import FirstModel, Precision
from rerank.errors import CheckpointError
from rerank.models.last_token import IdentifierHead, LastTokenReader
from rerank.models.loading import base_model_of, load_causal_lm, pick_device
from rerank.models.memory import translate_out_of_memory
from rerank.models.precision import compute_in, uses_autocast
from rerank.prompting.identifiers import IdentifierKind, derive_identifiers
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import Template, load_template
from rerank.rankers.base import Ranker
from rerank.rankers.self_test import Scores, failing_on_windows, windows_of
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import ScoreKind, Window, WindowRanking
from rerank.util.files import sha256_of_files
from rerank.util.validation import problems_of


class FirstPrompts(TextPrompts):
    """Renders windows as prompts of FIRST, and ranks them by a model's logits of their identifiers.

    Args:
        tokenizer: the model's tokenizer.
        context_tokens: largest number of tokens of a prompt and its identifier.
        template: a prompt template, or its name or path.
        identifiers: letters or numbers.
        passage_tokens: largest number of tokens shown per passage, as in training; 0: no limit but the context.

    Attributes:
        identifiers: the identifiers of a window's passages, in order.

    Raises:
        CheckpointError: the tokenizer has too few single-token identifiers, or the chat template opens a reasoning.
        ConfigError: there is no such template.
    """

    kind = "first"
    score_kind = ScoreKind.WINDOW_LOG_PROB

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context_tokens: int,
        template: str | Template,
        identifiers: IdentifierKind,
        passage_tokens: int,
    ) -> None:
        super().__init__(tokenizer, context_tokens, template, answer_tokens=1, passage_tokens=passage_tokens)
        self.identifiers = derive_identifiers(tokenizer, identifiers, self.renderer.prompt_end)
        self.max_window_size = len(self.identifiers)
        self.max_window_tokens = context_tokens

    def encode(self, window: Window) -> Window:
        """Renders the prompt, which ends with the opening bracket of the answer."""
        prompt = self.renderer.prompt(window, self.identifiers.texts)
        token_ids = (*prompt.token_ids, self.identifiers.bracket_id)
        return replace(window, prompts=(token_ids,), tokens=len(token_ids), truncated=prompt.truncated)

    def ranking(self, window: Window, logits: torch.Tensor) -> WindowRanking:
        """Ranks a window of n passages by log-probabilities, in float32, from at least n logits."""
        return WindowRanking(tuple(torch.log_softmax(logits[: len(window.passages)], dim=0).tolist()))


class FirstRanker(FirstPrompts, Ranker):
    """Ranks windows by the identifier logits of a causal LM.

    Args:
        checkpoint: a folder with a causal LM, or a LoRA adapter.
        template, identifiers, passage_tokens: see FirstPrompts.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: the checkpoint holds no causal LM, or its tokenizer has too few single-token identifiers.
        ConfigError: there is no such template.
        SelfTestFailed: the model fails on the windows of the self-test.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str | Template,
        identifiers: IdentifierKind = IdentifierKind.LETTERS,
        device: str = "auto",
        precision: Precision = "auto",
        passage_tokens: int = 0,
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        super().__init__(lm.tokenizer, lm.context_tokens, template, identifiers, passage_tokens)
        self.reference = self._plain_scores(lm.model)
        head = IdentifierHead(lm.model.get_output_embeddings(), self.identifiers.token_ids)
        lm.model.set_output_embeddings(head.to(self._device))
        compute_in(lm.model, lm.precision)
        self._reader = LastTokenReader(lm.model, uses_autocast(lm.model, lm.precision))
        self.info = replace(
            self.describe(model_id(checkpoint), lm.revision),
            precision=lm.precision,
            supports_batching=self._reader.supports_batching,
            supports_preemption=True,
            gpu_batch_tokens=self._reader.gpu_batch_tokens,
        )

    @translate_out_of_memory()
    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        """Ranks windows by the logits of their identifiers."""
        prompts = [torch.tensor(prompt, device=self._device) for window in parts for prompt in window.prompts]
        rows = self._reader.read(prompts).cpu()
        return [self.ranking(window, row) for window, row in zip(parts, rows, strict=True)]

    def call_between_layers(self, function: Callable[[], None]) -> None:
        self._reader.between_layers = function

    @torch.inference_mode()
    def _plain_scores(self, model: PreTrainedModel) -> Scores:
        """Returns the scores of the self-test's windows by the unchanged model, with its full vocabulary head."""
        rows = []
        with failing_on_windows():
            for window in windows_of(self, self.max_window_size):
                encoded = super().encode(window)
                ids = torch.tensor(encoded.prompts, device=self._device)  # (1, T)
                logits = model(input_ids=ids, use_cache=False).logits[0, -1, list(self.identifiers.token_ids)]
                rows.append(self.ranking(encoded, logits.float().cpu()).scores)
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class FirstSettings:
    """Settings of a checkpoint's training; without a manifest, the configured ones or the defaults.

    Attributes:
        passage_tokens: largest number of tokens shown per passage; 0: no limit but the context.
    """

    template: Template
    identifiers: IdentifierKind
    passage_tokens: int


def first_settings(model: FirstModel) -> FirstSettings:
    """Returns the settings of a model's manifest; without a manifest, the configured ones or the defaults.

    Raises:
        CheckpointError: the checkpoint's manifest is broken, belongs to another kind of ranker, or contradicts the
            configured template, prompt or identifiers; or an adapter was trained on another base.
        ConfigError: there is no such template.
    """
    manifest = read_manifest(model.path)
    if manifest is None:
        return FirstSettings(
            load_template(model.template or "first").with_style(model.prompt),
            IdentifierKind(model.identifiers or "letters"),
            model.passage_tokens or 0,
        )
    style = trained_style(model.path, manifest)
    _check(model, manifest, style)
    return FirstSettings(
        load_template(str(model.path / TEMPLATE_FILE)).with_style(style),
        IdentifierKind(manifest.identifiers),
        manifest.passage_tokens if model.passage_tokens is None else model.passage_tokens,
    )


def trained_style(folder: Path, manifest: CheckpointManifest | None) -> PromptStyle:
    """Returns the style of the prompts in training; without a manifest, the default.

    Raises:
        CheckpointError: the manifest has an invalid style.
    """
    if manifest is None:
        return PromptStyle()
    try:
        return PromptStyle.model_validate(manifest.prompt)
    except ValidationError as error:
        problems = problems_of(error, manifest.prompt, PromptStyle, lambda _: f"{folder / MANIFEST_FILE}: prompt")
        raise CheckpointError(problems) from error


def _check(model: FirstModel, manifest: CheckpointManifest, style: PromptStyle) -> None:
    if manifest.ranker != "first":
        raise CheckpointError(f"{model.path} is a {manifest.ranker} checkpoint; configure it with that ranker")
    if model.template is not None and (given := load_template(model.template).sha256) != manifest.template_sha256:
        raise CheckpointError(
            f"{model.path} was trained with template {manifest.template_sha256}, but {model.template} is {given}; "
            "leave template out to use the checkpoint's template"
        )
    if "prompt" in model.model_fields_set and model.prompt != style:
        raise CheckpointError(
            f"{model.path} was trained with prompt: {str(style) or 'default'}, not {str(model.prompt) or 'default'}; "
            "leave `prompt` and `profile` out to use the training's"
        )
    if model.identifiers not in (None, manifest.identifiers):
        raise CheckpointError(
            f"{model.path} was trained with {manifest.identifiers}, not with {model.identifiers}; leave identifiers out"
        )
    base = Path(name := base_model_of(model.path))
    if base != model.path and name != SMOLLM2 and base.is_dir():
        _check_base(model.path, base, manifest.base_revision)


def _check_base(adapter: Path, base: Path, expected: str) -> None:
    if (found := sha256_of_files(sorted(base.glob("*.safetensors")))) != expected:
        raise CheckpointError(
            f"{adapter} was trained on weights {expected} ({MANIFEST_FILE}), but its base {base} holds {found}; "
            "restore the base"
        )
