"""Profiles state what the files of published models do not, in one YAML file per model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rerank.errors import ConfigError
from rerank.util.yaml_files import parse_yaml


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figures(_Facts):
    """Published figures: collection, such as `trec-dl-2019` → nDCG@10 over the first 100 passages of BM25."""

    source: str
    ndcg_10: dict[str, float]


class PublisherPrompt(_Facts):
    """The hashes of the words of a publisher's prompt that no package holds, see `rerank.checkpoints.publisher_prompt`.

    Attributes:
        repository: OWNER/REPOSITORY on GitHub.
        files: files of the repository that have the words, each as COMMIT/PATH.
        literals: part of the prompt → the SHA-256 of each of its strings; an f-string counts with its expressions in
            braces.
        replace: text in the strings, such as {i} of an f-string → a field of the template, or nothing.
        sha256: SHA-256 of the resulting template.yaml.
    """

    repository: str
    files: tuple[str, ...]
    literals: dict[str, tuple[str, ...]]
    replace: dict[str, str] = Field(default_factory=dict)
    sha256: str


class PairPrompt(_Facts):
    """The prompt of a model that scores a query with one passage, and how its answer becomes a score.

    Attributes:
        pieces: parts of the prompt, each tokenized alone, as the publisher does. {query}, {passage} and {instruction}
            stand for texts, {bos} and {eos} for tokens of the tokenizer, and other names for parts of the profile's
            `publisher_prompt`.
        with_instruction: text for {instruction} in a request with an instruction.
        without_instruction: text for {instruction} in other requests.
        strips_texts: query and passage lose the white space around them.
        max_tokens: largest number of tokens of the prompt; a longer passage is cut at its end. Default: the model's.
        uncounted: indices of pieces whose tokens do not count for `max_tokens`; an index that occurs n times is
            subtracted n times.
        query_tokens: the most tokens of the piece with the query, which is cut at its end. Default: no separate limit.
        passage_tokens: the same for the piece with the passage.
        answers: one token, whose logit is the score, or two, whose logits' difference is; none for a classifier.
        layer: for a model with a head after each layer: the number of layers before the head that gives the score.
        divisor: number by which the score is divided.
        activation: function that is applied to the score.
    """

    pieces: tuple[str, ...]
    with_instruction: str = "{instruction}"
    without_instruction: str = ""
    strips_texts: bool = False
    max_tokens: int | None = None
    uncounted: tuple[int, ...] = ()
    query_tokens: int | None = None
    passage_tokens: int | None = None
    answers: tuple[str, ...] = ()
    layer: int | None = None
    divisor: float = 1.0
    activation: Literal["identity", "sigmoid", "log-sigmoid"] = "sigmoid"

    def with_words(self, words: Mapping[str, str]) -> PairPrompt:
        """Returns the prompt with its publisher's words filled in."""

        def filled(piece: str) -> str:
            for name, text in words.items():
                piece = piece.replace(f"{{{name}}}", text)
            return piece

        pieces = tuple(map(filled, self.pieces))
        return self.model_copy(update={"pieces": pieces, "without_instruction": filled(self.without_instruction)})


class Blocks(_Facts):
    """The limits of a model that reads a long list in blocks, one prompt each, see `rerank.rankers.jina_listwise`.

    Attributes:
        query_tokens, passage_tokens: largest number of tokens of a query and of a passage; both are cut at their ends.
        passages: largest number of passages of a block.
    """

    query_tokens: int
    passage_tokens: int
    passages: int


class FusionInDecoderPrompt(_Facts):
    """The prompt of each passage for `rerank.rankers.fusion_in_decoder`, which reads each alone and orders all.

    Attributes:
        text: {query}, {number} and {passage} stand for the query, the passage's number in the window, and its text.
        max_tokens: of the prompt with its end token; a longer one is cut at its end.
    """

    text: str
    max_tokens: int


class Profile(_Facts):
    """A published model.

    Attributes:
        checkpoints: names on the Hugging Face hub; none if the prompt is for any chat model.
        model_types: `model_type` in config.json of such a checkpoint; none if the prompt is for any chat model.
        licence: licence of the checkpoints, with its source if that is not the model card.
        prompt_source: where to find the publisher's prompt. A template.yaml in the checkpoint's folder precedes
            `template`.
        publisher_prompt: hashes of words of the prompt that are read from the publisher's files; None if `template`
            has all words.
        encoder: name on the hub of the encoder that the model was trained with; empty if it needs none.
        ranker, template, identifiers, decoding, strategy, window_size, thinking_tokens: settings of the model, as in
            the configuration of the service; those that are left out have the service's defaults.
        prompt: the style of the prompts, see `rerank.prompting.style.PromptStyle`.
        own_prompt: settings that replace those of `prompt` if the checkpoint's folder has a template.yaml, which
            another program reads than `template`.
        line_ends: part of the publisher's own prompt → the number of line ends at its end, because a template.yaml
            easily loses or gains one.
        pair: the prompt of a cross-encoder.
        blocks: limits of a model that reads blocks of passages.
        passage_prompt: the prompt of a model that reads each passage alone and orders all.
        figures: the published figures.
    """

    checkpoints: tuple[str, ...]
    model_types: tuple[str, ...]
    licence: str
    prompt_source: str
    publisher_prompt: PublisherPrompt | None = None
    encoder: str = ""
    ranker: Literal["first", "generation", "pe-rank", "e2rank", "cross-encoder", "jina-listwise", "fusion-in-decoder"]
    template: str | None = None
    identifiers: Literal["letters", "numbers"] | None = None
    decoding: Literal["one_step", "dynamic"] | None = None
    strategy: Literal["single", "sliding"] = "sliding"
    window_size: int = 20
    prompt: dict[str, int | str | tuple[str, ...]] = Field(default_factory=dict)
    own_prompt: dict[str, int | str | tuple[str, ...]] = Field(default_factory=dict)
    pair: PairPrompt | None = None
    blocks: Blocks | None = None
    passage_prompt: FusionInDecoderPrompt | None = None
    thinking_tokens: int | None = None
    line_ends: dict[Literal["prefix", "body", "suffix"], int] = Field(default_factory=dict)
    figures: Figures | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The settings of a model in the configuration of the service."""
        facts = {
            "checkpoints",
            "model_types",
            "licence",
            "prompt_source",
            "publisher_prompt",
            "encoder",
            "prompt",
            "own_prompt",
            "line_ends",
            "pair",
            "blocks",
            "passage_prompt",
            "figures",
        }
        return {name: value for name, value in self.model_dump(exclude=facts).items() if value is not None}


def names() -> list[str]:
    files = [item.name for item in resources.files(__package__).iterdir()]
    return sorted(file.removesuffix(".yaml") for file in files if file.endswith(".yaml"))


def of_model_type(model_type: str) -> list[str]:
    """Returns the profiles whose checkpoints have this `model_type`; those for any chat model if it is empty."""
    by_name = {name: load_profile(name).model_types for name in names()}
    return [name for name, types in by_name.items() if (model_type in types if model_type else not types)]


def of_checkpoint(name: str) -> str | None:
    """Returns the profile that lists the name of a model on the hub; None if none does."""
    return next((profile for profile in names() if name in load_profile(profile).checkpoints), None)


def of_folder(name: str, model_type: str) -> str | None:
    """Returns the profile of a published model by the name of its folder; None if there is none, or more than one.

    The folder's name must begin with the profile's name or with the name of one of its checkpoints, regardless of case,
    as the names of copies and conversions do. The longest match counts. Profiles for other model types are ignored.
    """
    shared = {profile: _beginning(name, profile) for profile in of_model_type(model_type) if model_type}
    longest = max(shared.values(), default=0)
    found = [profile for profile, chars in shared.items() if 0 < chars == longest]
    return found[0] if len(found) == 1 else None


def _beginning(folder: str, profile: str) -> int:
    """Returns the length of the longest name of a profile with which a folder's name begins; 0: none."""
    names = (profile, *(name.rpartition("/")[2] for name in load_profile(profile).checkpoints))
    return max(len(name) if folder.lower().startswith(name.lower()) else 0 for name in names)


def load_profile(name: str) -> Profile:
    """Returns the profile of a name. Raises: ConfigError if there is none."""
    if name not in names():
        raise ConfigError(f"there is no profile {name!r}; the profiles are {', '.join(names())}")
    text = (resources.files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")
    return Profile.model_validate(parse_yaml(text, f"{name}.yaml").content)
