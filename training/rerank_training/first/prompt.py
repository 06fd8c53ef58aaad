"""Prompt settings of a FIRST training: from the flags, the base's manifest, or the defaults."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from rerank.checkpoints.manifest import TEMPLATE_FILE, CheckpointManifest
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import TEXT_FIELDS, Template, load_template
from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.base_manifest import read_base_manifest, setting
from rerank_training.trainer.flags import WINDOW_SIZE

logger = logging.getLogger(__name__)

_TEMPLATE, _PASSAGE_TOKENS = "first", 256


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Prompt and window that the model is trained on.

    Attributes:
        template: of the prompt.
        identifiers: letters or numbers.
        window_size: largest number of passages in a window.
        passage_tokens: passages are truncated to this number of tokens; 0: as many as fit into the context.
    """

    template: Template
    identifiers: IdentifierKind
    window_size: int
    passage_tokens: int


def prompt_settings(arguments: FirstArguments) -> PromptSettings:
    """The settings of a training. A flag that differs from the base's manifest is logged as a warning with both values.

    Raises:
        CheckpointError: the base's manifest is invalid, or does not agree with its files.
        ConfigError: there is no such template.
    """
    trained = read_base_manifest(arguments.base, "first")
    settings = PromptSettings(
        _template(arguments, trained),
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


def _template(arguments: FirstArguments, base: CheckpointManifest | None) -> Template:
    if base is None:
        return load_template(arguments.template or _TEMPLATE, TEXT_FIELDS)
    path = Path(arguments.base) / TEMPLATE_FILE
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
