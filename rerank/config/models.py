"""Settings of the models that a service ranks with: one class per kind of ranker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from rerank.checkpoints import bundled
from rerank.checkpoints.hub import is_hub_name, repository_of
from rerank.checkpoints.manifest import TEMPLATE_FILE, trained_window
from rerank.config.served import InferenceServerSettings, RerankServerSettings, ServerSettings
from rerank.config.settings import Settings
from rerank.errors import ConfigError
from rerank.names import MAX_FIRST_STAGE_WEIGHT
from rerank.profiles import Profile, load_profile, of_checkpoint
from rerank.prompting.style import TEXT_KEYS, PromptStyle
from rerank.types import FirstStageKind, FirstStageWeight, Precision, StrategyKind

#: Largest number of words of a passage in E2Rank's prompt by default, as in the paper.
E2RANK_WORDS = 1024
#: E2Rank's default instruction.
E2RANK_INSTRUCTION = "Order these documents by how well they answer the search query:"


class ModelSettings(Settings):
    """Settings that all models have: the name, and the strategy of requests that set none.

    Attributes:
        name: the model's name in requests.
        ranker: how the model ranks: fusion, pe-rank, e2rank, first, generation,
            fusion-in-decoder, jina-listwise, cross-encoder, late-interaction, api or identity. Default: the profile's.
        load: when the model is loaded: at the `start` of the service, or by the first `request` for it, which waits or
            fails with UNAVAILABLE by its deadline. Default: start; request for the bundled language models.
        unload_after_s: seconds without a request until the model's memory is freed; the next request loads it again.
            Default: never.
        strategy: the default strategy: single, sliding (by half a window), top-down or cascade. Default: sliding.
        window_size: the default number of passages per window, at least 2. Default: the size in training if the
            checkpoint has a manifest, otherwise 20; for PE-Rank 200, or the largest number that the checkpoint reads.
        preranker: the model that orders all candidates before this one does, in a cascade whose request names no other.
            It ranks by its own default strategy, which may be a cascade of two models. Default: none; the strategy
            cascade needs one.
    """

    name: Annotated[str, Field(min_length=1)]
    load: Literal["start", "request"] = "start"
    unload_after_s: Annotated[float, Field(gt=0, strict=True)] | None = None
    strategy: StrategyKind = StrategyKind.SLIDING
    window_size: Annotated[int, Field(ge=2, strict=True)] = 20
    preranker: str = ""

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint; None for a model that has none, or whose default is bundled."""
        return None

    @property
    def servers(self) -> ServerSettings | None:
        """The servers that run the model; None if it runs in this process."""
        return None

    def read_window_size(self) -> int:
        """Reads the default number of passages per window: `window_size`, or else the manifest's."""
        return self.window_size

    def weight_for(self, kind: FirstStageKind) -> FirstStageWeight:
        """The weight of the first stage in requests that state no number; `kind` if it is derived from each list."""
        return 0.0

    @model_validator(mode="after")
    def _cascade_has_a_preranker(self) -> Self:
        if self.strategy is StrategyKind.CASCADE and not self.preranker:
            raise ValueError("the strategy cascade needs a preranker; name another model, as in preranker: pe-rank")
        return self


#: Settings that say when a model runs and in which windows. The model's scores of a window do not depend on them.
SCHEDULE_SETTINGS = {*ModelSettings.model_fields, "first_stage_weight"}


class CheckpointModel(ModelSettings):
    """Settings of a model with a checkpoint.

    Attributes:
        path: folder of the checkpoint, or its name on the hub, from which the service downloads it when it starts.
            Default: none.
    """

    path: Path | None = None

    @property
    def checkpoint(self) -> Path | None:
        return self.path


class ProfiledModel(CheckpointModel):
    """Settings of a model for which a profile may exist, as for published models.

    Attributes:
        profile: name of the profile of a published model. It states the defaults of the other settings, and the
            settings of the prompts except for the template's words. A template.yaml in the checkpoint's folder takes
            precedence over the profile's template.
        precision: number format of the model. Default: auto.
    """

    profile: str | None = None
    precision: Precision = "auto"

    @model_validator(mode="before")
    @classmethod
    def _complete_from_profile(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        if (name := _profile_of(settings)) is None:
            return cls._with_defaults(settings, None)
        settings = settings | {"profile": name}
        try:
            profile = load_profile(name)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if (ranker := settings.get("ranker", profile.ranker)) != profile.ranker:
            raise ValueError(f"profile {name} is of ranker {profile.ranker}, not {ranker}")
        return cls._with_defaults(settings, profile)

    @classmethod
    def _with_defaults(cls, settings: dict[str, Any], profile: Profile | None) -> dict[str, Any]:
        """Returns the settings, completed by the profile's."""
        return (profile.settings if profile else {}) | settings


class LanguageModel(ProfiledModel):
    """Settings of a language model with a prompt.

    Attributes:
        template: name of a bundled prompt template, or of one in the package rank-llm, such as rank-llm:rank_gpt, or
            path of a YAML file. Default: the checkpoint's.
        prompt: settings of the prompts except for the template's words, see below. Default: the settings of the profile
            or of the checkpoint.
    """

    #: True if the default of `window_size` comes from the checkpoint's manifest.
    _has_window_of_training: ClassVar[bool] = True
    #: The keys of `prompt` that have an effect, and their defaults where these differ from PromptStyle's.
    _prompt_keys: ClassVar[frozenset[str]] = TEXT_KEYS
    _prompt_defaults: ClassVar[dict[str, object]] = {}

    template: str | None = None
    prompt: PromptStyle = PromptStyle()

    @classmethod
    def _with_defaults(cls, settings: dict[str, Any], profile: Profile | None) -> dict[str, Any]:
        of_profile, prompt = dict[str, Any](), cls._prompt_defaults
        if profile is not None:
            of_profile, prompt = profile.settings, prompt | profile.prompt
            path = settings.get("path")
            has_own = isinstance(path, str | Path) and (own := Path(path) / TEMPLATE_FILE).is_file()
            if has_own:
                of_profile["template"] = str(own)
            elif has_own := profile.publisher_prompt is not None and is_hub_name(str(path)):
                of_profile.pop("template", None)  # the download writes the publisher's template into the folder
            if has_own:
                prompt |= {} if settings.get("template") else profile.own_prompt
        given = settings.get("prompt", {})
        if isinstance(given, PromptStyle):
            given = given.stated
        if prompt and isinstance(given, dict):
            settings = settings | {"prompt": prompt | given}
        return of_profile | settings

    @model_validator(mode="after")
    def _prompt_has_keys_with_an_effect(self) -> Self:
        if unread := sorted(self.prompt.stated.keys() - self._prompt_keys):
            raise ValueError(f"prompt: {', '.join(unread)} has no effect on this ranker; leave it out")
        return self

    def read_window_size(self) -> int:
        trained = trained_window(self.path) if self._has_window_of_training and self.path is not None else None
        return self.window_size if "window_size" in self.model_fields_set else trained or self.window_size


Weight: TypeAlias = Annotated[float, Field(ge=0, le=MAX_FIRST_STAGE_WEIGHT, strict=True)]


class ScoringModel(ModelSettings):
    """Settings of a model that scores the passages of a window.

    Attributes:
        first_stage_weight: weight of the first stage's scores in requests that state no number, 0 to 100. It has an
            effect where one window holds all passages that are ranked. Default: 0.
    """

    first_stage_weight: Weight = 0.0

    def weight_for(self, kind: FirstStageKind) -> FirstStageWeight:
        return self.first_stage_weight


class ServableModel(LanguageModel):
    """Settings of a causal LM that runs in this process, or in inference servers.

    Attributes:
        served_by: the inference server of the model; `path` is then its tokenizer: a folder, with the template and
            golden scores if there are any, or a name on the hub. Default: none, the model runs in this process.
    """

    served_by: InferenceServerSettings | None = None

    @property
    def servers(self) -> ServerSettings | None:
        return self.served_by

    @model_validator(mode="before")
    @classmethod
    def _served_model_has_a_path(cls, settings: Any) -> Any:
        is_served = isinstance(settings, dict) and settings.get("served_by") is not None
        if is_served and settings.get("path") is None:
            raise ValueError(
                "a model with served_by needs `path`, the name of its tokenizer, or a folder with it and, if there "
                "are any, its template and golden scores"
            )
        return settings


class ListwiseModel(ServableModel):
    """Settings of a causal LM that names passages by identifiers.

    Attributes:
        identifiers: kind of the passage identifiers. Default: the checkpoint's; otherwise letters for first, and
            numbers for generation.
    """

    identifiers: Literal["letters", "numbers"] | None = None


class IdentityModel(ModelSettings):
    """Settings of a model that keeps the first-stage order."""

    ranker: Literal["identity"]


class PERankModel(ScoringModel, LanguageModel):
    """Settings of a PE-Rank model (Liu et al., arXiv 2406.14848), which reads one vector per passage.

    Attributes:
        path: folder of the checkpoint. Default: the bundled checkpoint for the default encoder; for any other encoder,
            a zero-initialised checkpoint, which orders by the encoder's cosine.
        decoding: `one_step` scores all passages of a window in one forward pass; `dynamic` generates the order passage
            by passage, as the paper does. Default: the checkpoint's: dynamic for a published one, one_step for one
            trained by this package.
        template: name of a bundled prompt template or path of a YAML file, for a checkpoint whose config.json names no
            template. Default: the template of the checkpoint.
        first_stage_weight: as for other models. Default: 0.25.
        lexical_weight: weight of BM25 over the texts of a window, because a vector hardly represents single words.
            The more the first stage agrees with BM25, the lower the weight, down to 0. Default: 1. Dynamic decoding
            gives no scores to add BM25 to: setting a weight is then an error.
    """

    _has_window_of_training: ClassVar[bool] = False
    _prompt_keys: ClassVar[frozenset[str]] = frozenset(
        {"bos_tokens", "chat_template", "guards", "blank_passages", "encoder_tokens"}
    )

    ranker: Literal["pe-rank"]
    #: Relevance feedback ranks the union of two searches of depth 100.
    window_size: Annotated[int, Field(ge=2, strict=True)] = 200
    #: Chosen on TREC DL 2021, pydoc, CACM and vaswani; see docs/evidence/results.md.
    first_stage_weight: Weight = 0.25
    lexical_weight: Weight = 1.0
    decoding: Literal["one_step", "dynamic"] | None = None


class FirstModel(ScoringModel, ListwiseModel):
    """Settings of a FIRST model (Gangi Reddy et al., arXiv 2406.15657): a causal LM, scored at one position.

    A checkpoint of `train-first` contains its template, identifiers and passage_tokens. For another checkpoint, set
    the values of its training.

    Attributes:
        path: folder of the causal LM or of a LoRA adapter. Default: the bundled adapter, which was
            trained on windows of 20 passages, over SmolLM2-135M. For a served model: the folder of its tokenizer,
            template and golden scores; its weights are not read.
        template: name of a bundled prompt template or path of a YAML file. Default: the template of the checkpoint, or
            `first`.
        passage_tokens: limit on the tokens of a passage in the prompt; 0: only the model's context limits them.
            Default: the checkpoint's, or 0.
    """

    ranker: Literal["first"]
    path: Path = bundled.FIRST
    passage_tokens: Annotated[int, Field(ge=0, strict=True)] | None = None


class WholeListModel(ModelSettings):
    """Settings of a model whose window holds the whole list.

    Attributes:
        strategy: the default strategy. Default: single.
        window_size: the default number of passages that are scored. Default: 1,000; in a cascade, set it to the number
            of the preranker's best passages that are worth a forward pass each.
    """

    strategy: StrategyKind = StrategyKind.SINGLE
    window_size: Annotated[int, Field(ge=2, strict=True)] = 1000


class E2RankModel(WholeListModel, ScoringModel, ServableModel):
    """Settings of an E2Rank model (Liu et al., arXiv 2510.22733): an encoder that makes a new vector of query and list.

    Attributes:
        path: folder of the model. If the service's encoder has the same weights, they are loaded once, and passages
            keep their vectors from the index; otherwise the model encodes the passages of each request. Default: the
            encoder of the service. For a served model: the folder of its tokenizer; if the model is the service's
            encoder, also of its weights.
        instruction: the instruction in prompts of requests without one; published models were trained with the words of
            their publisher. Default: "Order these documents by how well they answer the search query:".
        template: name of a bundled prompt template or path of a YAML file. Default: e2rank.
    """

    _has_window_of_training: ClassVar[bool] = False
    _prompt_keys: ClassVar[frozenset[str]] = TEXT_KEYS | {"encoder_text"}
    _prompt_defaults: ClassVar[dict[str, object]] = {"max_words": E2RANK_WORDS}

    ranker: Literal["e2rank"]
    instruction: Annotated[str, Field(min_length=1)] = E2RANK_INSTRUCTION


class GenerationModel(ListwiseModel):
    """Settings of a permutation generation model: a causal LM that generates the full order, as RankZephyr does.

    Attributes:
        path: folder of the causal LM or of a LoRA adapter.
        template: name of a bundled prompt template or path of a YAML file; use the template of the model's training.
            Default: first.
        thinking_tokens: largest number of tokens of the reasoning before the answer; 0 for a model that answers at
            once. With reasoning, the answer is the last chain of identifiers, such as "[2] > [1]", after the last
            </think>. A window whose reasoning is longer keeps its order, and the reply says so. Default: 0.
    """

    _prompt_keys: ClassVar[frozenset[str]] = TEXT_KEYS | {"order_tokens"}

    ranker: Literal["generation"]
    path: Path
    thinking_tokens: Annotated[int, Field(ge=0, le=100_000, strict=True)] = 0

    @model_validator(mode="after")
    def _exact_order_has_no_reasoning(self) -> Self:
        if self.thinking_tokens and self.prompt.order_tokens == "exact":
            raise ValueError("prompt: order_tokens: exact has no effect with thinking_tokens; leave one of them out")
        return self


class FusionInDecoderModel(ProfiledModel):
    """Settings of a LiT5 model (Tamber et al., arXiv 2312.16098): an encoder-decoder that writes the order of a window.

    Its profile states the prompt of each passage.

    Attributes:
        path: folder of the model.
        window_size: the default and the largest number of passages per window, at most 100; the answer has a token for
            each character of their order, "[2] > [1] > …". Default: 20; checkpoints whose names end with -v2 order 100.
    """

    ranker: Literal["fusion-in-decoder"]
    path: Path


class JinaListwiseModel(WholeListModel, ScoringModel, LanguageModel):
    """Settings of jina-reranker-v3 or v3.5 (Wang et al., arXiv 2509.25085), which reads a list in one prompt.

    Its profile limits the lengths of texts, and the blocks into which a long list is divided.

    Attributes:
        path: folder of the model.
        template: path of a YAML file. Default: the publisher's prompt.
    """

    _has_window_of_training: ClassVar[bool] = False

    ranker: Literal["jina-listwise"]
    path: Path


class CrossEncoderModel(WholeListModel, ScoringModel, ProfiledModel):
    """Settings of a cross-encoder: a model that scores a query and one passage.

    Its prompt, its answer tokens and its activation come from a profile, or else from the checkpoint's files, as
    sentence-transformers reads them.

    Attributes:
        path: folder of the model: one with a classification head for one score, or a causal LM that was saved with
            `LogitScore`; with a profile, the folder of such a model.
    """

    ranker: Literal["cross-encoder"]
    path: Path


class LateInteractionModel(WholeListModel, ScoringModel, CheckpointModel):
    """Settings of a late-interaction model such as ColBERT, which sentence-transformers' `MultiVectorEncoder` loads.

    Attributes:
        path: folder of the model.
        precision: number format of the model. Default: auto.
    """

    ranker: Literal["late-interaction"]
    path: Path
    precision: Precision = "auto"


class FusionModel(WholeListModel):
    """Settings of a fusion: a weighted sum of signals, without a language model.

    The signals are the first stage's scores, BM25 over the texts of the list, the score of learned sparse vectors, and
    the cosine of the encoder's vectors, each as a z-score over the list. The weight of the cosine is 1.

    Attributes:
        first_stage_weight: weight of the first stage's scores in requests that state no number, 0 to 100. Default:
            none, the weight is derived from each list.
        beyond_words_weight: weight of a first stage that is stated to be neural, and the largest weight that is derived
            from a list. A derived weight falls, down to 0, if the first stage correlates with BM25 over the list, or if
            the other signals do not agree with the first stage. Default: 1.25.
        lexical_weight: weight of BM25 over the texts of the list, 0 to 100. Default: 0.5.
        sparse_weight: weight of the score of learned sparse vectors, 0 to 100; 0: they are not computed. Default: 0.5.
        cosine_depth: number of passages whose cosine is computed: the best by the other signals. Passages whose vectors
            are in the index get a cosine in any case. 0: all passages. Default: 30.
        similar_passages: number of leading passages towards which the query's vector moves half-way before the cosines
            are computed again, and number of nearest passages in the smoothing. 0: neither is done. Default: 5.
        smoothing_weight: weight, 0 to 100, of the mean score of a passage's nearest passages in the list, which is
            added to its own score, both as z-scores: similar passages are relevant to the same queries. 0: no
            smoothing. Default: 0.25.
    """

    ranker: Literal["fusion"]
    first_stage_weight: Weight | None = None
    beyond_words_weight: Weight = 1.25
    lexical_weight: Weight = 0.5
    sparse_weight: Weight = 0.5
    cosine_depth: Annotated[int, Field(ge=0, strict=True)] = 30
    similar_passages: Annotated[int, Field(ge=0, strict=True)] = 5
    smoothing_weight: Weight = 0.25

    def weight_for(self, kind: FirstStageKind) -> FirstStageWeight:
        return kind if self.first_stage_weight is None else self.first_stage_weight


class ApiModel(WholeListModel, ScoringModel):
    """Settings of a model that a rerank API serves; it is sent the query and the passages as texts.

    Attributes:
        strategy: the default strategy. Default: single; sliding if `served_by.scores` is listwise.
        window_size: the default number of passages of a window; for a listwise API also its limit, such as 64 for
            jina-reranker-v3. Default: 1,000.
        served_by: the servers and their API.
    """

    ranker: Literal["api"]
    served_by: RerankServerSettings

    @property
    def servers(self) -> ServerSettings | None:
        return self.served_by

    @model_validator(mode="before")
    @classmethod
    def _slide_if_listwise(cls, settings: Any) -> Any:
        if not isinstance(settings, dict) or "strategy" in settings:
            return settings
        servers = settings.get("served_by")
        scores = servers.get("scores") if isinstance(servers, dict) else getattr(servers, "scores", None)
        return settings | {"strategy": StrategyKind.SLIDING} if scores == "listwise" else settings


def _profile_of(settings: dict[str, Any]) -> str | None:
    """The profile that the settings name, or else the profile of the model's name on the hub if its ranker fits."""
    if (given := settings.get("profile")) is not None:
        return str(given)
    path = str(settings.get("path"))
    known = of_checkpoint(repository_of(path)) if is_hub_name(path) else None
    return known if known and settings.get("ranker", load_profile(known).ranker) == load_profile(known).ranker else None


def _with_ranker(settings: Any) -> Any:
    """Adds the profile's ranker to settings without a ranker."""
    if not isinstance(settings, dict) or "ranker" in settings or (name := _profile_of(settings)) is None:
        return settings
    try:
        return settings | {"ranker": load_profile(name).ranker}
    except ConfigError as error:
        raise ValueError(str(error)) from error


ModelConfig: TypeAlias = Annotated[
    IdentityModel
    | FusionModel
    | PERankModel
    | E2RankModel
    | FirstModel
    | GenerationModel
    | FusionInDecoderModel
    | JinaListwiseModel
    | CrossEncoderModel
    | LateInteractionModel
    | ApiModel,
    Field(discriminator="ranker"),
    BeforeValidator(_with_ranker),
]


def needs_sparse(model: ModelConfig) -> bool:
    """True if a model reads the vectors of the service's sparse encoder."""
    return isinstance(model, FusionModel) and model.sparse_weight > 0
