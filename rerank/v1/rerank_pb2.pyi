from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StrategyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRATEGY_KIND_UNSPECIFIED: _ClassVar[StrategyKind]
    STRATEGY_KIND_SINGLE: _ClassVar[StrategyKind]
    STRATEGY_KIND_SLIDING: _ClassVar[StrategyKind]
    STRATEGY_KIND_TOP_DOWN: _ClassVar[StrategyKind]
    STRATEGY_KIND_CASCADE: _ClassVar[StrategyKind]

class OnFailure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_FAILURE_UNSPECIFIED: _ClassVar[OnFailure]
    ON_FAILURE_ERROR: _ClassVar[OnFailure]
    ON_FAILURE_FIRST_STAGE: _ClassVar[OnFailure]

class FirstStageKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIRST_STAGE_KIND_UNSPECIFIED: _ClassVar[FirstStageKind]
    FIRST_STAGE_KIND_AUTO: _ClassVar[FirstStageKind]
    FIRST_STAGE_KIND_NEURAL: _ClassVar[FirstStageKind]

class ScoreKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORE_KIND_UNSPECIFIED: _ClassVar[ScoreKind]
    SCORE_KIND_RANK: _ClassVar[ScoreKind]
    SCORE_KIND_WINDOW_LOG_PROB: _ClassVar[ScoreKind]
    SCORE_KIND_POINTWISE: _ClassVar[ScoreKind]
    SCORE_KIND_POINTWISE_PROBABILITY: _ClassVar[ScoreKind]
    SCORE_KIND_WINDOW_SCORE: _ClassVar[ScoreKind]

class Completeness(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPLETENESS_UNSPECIFIED: _ClassVar[Completeness]
    COMPLETENESS_FULL: _ClassVar[Completeness]
    COMPLETENESS_PARTIAL: _ClassVar[Completeness]
    COMPLETENESS_NONE: _ClassVar[Completeness]

class FirstStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIRST_STAGE_UNSPECIFIED: _ClassVar[FirstStage]
    FIRST_STAGE_BM25: _ClassVar[FirstStage]
    FIRST_STAGE_DENSE: _ClassVar[FirstStage]
    FIRST_STAGE_HYBRID_RRF: _ClassVar[FirstStage]
    FIRST_STAGE_HYBRID_Z_SCORE: _ClassVar[FirstStage]

class FeedbackMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEEDBACK_METHOD_UNSPECIFIED: _ClassVar[FeedbackMethod]
    FEEDBACK_METHOD_WEIGHTED_RANKNET: _ClassVar[FeedbackMethod]
    FEEDBACK_METHOD_KL: _ClassVar[FeedbackMethod]
    FEEDBACK_METHOD_ROCCHIO: _ClassVar[FeedbackMethod]
    FEEDBACK_METHOD_E2RANK: _ClassVar[FeedbackMethod]
    FEEDBACK_METHOD_WEIGHTED_RANKNET_FIRST: _ClassVar[FeedbackMethod]
    FEEDBACK_METHOD_CHAIN: _ClassVar[FeedbackMethod]
STRATEGY_KIND_UNSPECIFIED: StrategyKind
STRATEGY_KIND_SINGLE: StrategyKind
STRATEGY_KIND_SLIDING: StrategyKind
STRATEGY_KIND_TOP_DOWN: StrategyKind
STRATEGY_KIND_CASCADE: StrategyKind
ON_FAILURE_UNSPECIFIED: OnFailure
ON_FAILURE_ERROR: OnFailure
ON_FAILURE_FIRST_STAGE: OnFailure
FIRST_STAGE_KIND_UNSPECIFIED: FirstStageKind
FIRST_STAGE_KIND_AUTO: FirstStageKind
FIRST_STAGE_KIND_NEURAL: FirstStageKind
SCORE_KIND_UNSPECIFIED: ScoreKind
SCORE_KIND_RANK: ScoreKind
SCORE_KIND_WINDOW_LOG_PROB: ScoreKind
SCORE_KIND_POINTWISE: ScoreKind
SCORE_KIND_POINTWISE_PROBABILITY: ScoreKind
SCORE_KIND_WINDOW_SCORE: ScoreKind
COMPLETENESS_UNSPECIFIED: Completeness
COMPLETENESS_FULL: Completeness
COMPLETENESS_PARTIAL: Completeness
COMPLETENESS_NONE: Completeness
FIRST_STAGE_UNSPECIFIED: FirstStage
FIRST_STAGE_BM25: FirstStage
FIRST_STAGE_DENSE: FirstStage
FIRST_STAGE_HYBRID_RRF: FirstStage
FIRST_STAGE_HYBRID_Z_SCORE: FirstStage
FEEDBACK_METHOD_UNSPECIFIED: FeedbackMethod
FEEDBACK_METHOD_WEIGHTED_RANKNET: FeedbackMethod
FEEDBACK_METHOD_KL: FeedbackMethod
FEEDBACK_METHOD_ROCCHIO: FeedbackMethod
FEEDBACK_METHOD_E2RANK: FeedbackMethod
FEEDBACK_METHOD_WEIGHTED_RANKNET_FIRST: FeedbackMethod
FEEDBACK_METHOD_CHAIN: FeedbackMethod

class Candidate(_message.Message):
    __slots__ = ("doc_id", "text", "in_index", "first_stage_score", "title")
    DOC_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IN_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_SCORE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    doc_id: str
    text: str
    in_index: bool
    first_stage_score: float
    title: str
    def __init__(self, doc_id: _Optional[str] = ..., text: _Optional[str] = ..., in_index: _Optional[bool] = ..., first_stage_score: _Optional[float] = ..., title: _Optional[str] = ...) -> None: ...

class Strategy(_message.Message):
    __slots__ = ("kind", "window_size", "stride", "preranker")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    PRERANKER_FIELD_NUMBER: _ClassVar[int]
    kind: StrategyKind
    window_size: int
    stride: int
    preranker: str
    def __init__(self, kind: _Optional[_Union[StrategyKind, str]] = ..., window_size: _Optional[int] = ..., stride: _Optional[int] = ..., preranker: _Optional[str] = ...) -> None: ...

class FirstStageWeight(_message.Message):
    __slots__ = ("kind", "number")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    kind: FirstStageKind
    number: float
    def __init__(self, kind: _Optional[_Union[FirstStageKind, str]] = ..., number: _Optional[float] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("query", "candidates", "model", "top_n", "strategy", "instruction", "return_passages", "allow_partial", "include_trace", "ordered", "min_relevance", "max_chunks_per_doc", "on_failure", "first_stage_weight")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    RETURN_PASSAGES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TRACE_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    MIN_RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNKS_PER_DOC_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    query: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    model: str
    top_n: int
    strategy: Strategy
    instruction: str
    return_passages: bool
    allow_partial: bool
    include_trace: bool
    ordered: bool
    min_relevance: float
    max_chunks_per_doc: int
    on_failure: OnFailure
    first_stage_weight: FirstStageWeight
    def __init__(self, query: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., model: _Optional[str] = ..., top_n: _Optional[int] = ..., strategy: _Optional[_Union[Strategy, _Mapping]] = ..., instruction: _Optional[str] = ..., return_passages: _Optional[bool] = ..., allow_partial: _Optional[bool] = ..., include_trace: _Optional[bool] = ..., ordered: _Optional[bool] = ..., min_relevance: _Optional[float] = ..., max_chunks_per_doc: _Optional[int] = ..., on_failure: _Optional[_Union[OnFailure, str]] = ..., first_stage_weight: _Optional[_Union[FirstStageWeight, _Mapping]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class RankedCandidate(_message.Message):
    __slots__ = ("doc_id", "original_position", "score", "first_stage_score", "text", "title", "relevance", "span")
    DOC_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_POSITION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_SCORE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    doc_id: str
    original_position: int
    score: float
    first_stage_score: float
    text: str
    title: str
    relevance: float
    span: Span
    def __init__(self, doc_id: _Optional[str] = ..., original_position: _Optional[int] = ..., score: _Optional[float] = ..., first_stage_score: _Optional[float] = ..., text: _Optional[str] = ..., title: _Optional[str] = ..., relevance: _Optional[float] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("model", "strategy", "windows", "rounds", "tokens", "decode_tokens", "truncated_doc_ids", "completeness", "reason", "queue_ms", "prepare_ms", "model_ms", "decode_ms", "total_ms", "generated_identifiers", "repaired_identifiers", "first_stage_weight", "kendall_tau", "model_warning", "failure", "query_truncated", "cosines", "prompt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_DOC_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETENESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREPARE_MS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_IDENTIFIERS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_IDENTIFIERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    KENDALL_TAU_FIELD_NUMBER: _ClassVar[int]
    MODEL_WARNING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    QUERY_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    COSINES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    model: str
    strategy: str
    windows: int
    rounds: int
    tokens: int
    decode_tokens: int
    truncated_doc_ids: _containers.RepeatedScalarFieldContainer[str]
    completeness: Completeness
    reason: str
    queue_ms: float
    prepare_ms: float
    model_ms: float
    decode_ms: float
    total_ms: float
    generated_identifiers: int
    repaired_identifiers: int
    first_stage_weight: float
    kendall_tau: float
    model_warning: str
    failure: str
    query_truncated: bool
    cosines: int
    prompt: str
    def __init__(self, model: _Optional[str] = ..., strategy: _Optional[str] = ..., windows: _Optional[int] = ..., rounds: _Optional[int] = ..., tokens: _Optional[int] = ..., decode_tokens: _Optional[int] = ..., truncated_doc_ids: _Optional[_Iterable[str]] = ..., completeness: _Optional[_Union[Completeness, str]] = ..., reason: _Optional[str] = ..., queue_ms: _Optional[float] = ..., prepare_ms: _Optional[float] = ..., model_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., generated_identifiers: _Optional[int] = ..., repaired_identifiers: _Optional[int] = ..., first_stage_weight: _Optional[float] = ..., kendall_tau: _Optional[float] = ..., model_warning: _Optional[str] = ..., failure: _Optional[str] = ..., query_truncated: _Optional[bool] = ..., cosines: _Optional[int] = ..., prompt: _Optional[str] = ...) -> None: ...

class WindowTrace(_message.Message):
    __slots__ = ("round", "model", "positions", "scores", "permutation", "tokens", "model_ms", "score_kind")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    PERMUTATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_MS_FIELD_NUMBER: _ClassVar[int]
    SCORE_KIND_FIELD_NUMBER: _ClassVar[int]
    round: int
    model: str
    positions: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    permutation: _containers.RepeatedScalarFieldContainer[int]
    tokens: int
    model_ms: float
    score_kind: ScoreKind
    def __init__(self, round: _Optional[int] = ..., model: _Optional[str] = ..., positions: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., permutation: _Optional[_Iterable[int]] = ..., tokens: _Optional[int] = ..., model_ms: _Optional[float] = ..., score_kind: _Optional[_Union[ScoreKind, str]] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("windows", "input_order")
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    INPUT_ORDER_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[WindowTrace]
    input_order: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, windows: _Optional[_Iterable[_Union[WindowTrace, _Mapping]]] = ..., input_order: _Optional[_Iterable[int]] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("results", "score_kind", "execution", "trace", "first_stage_hits", "feedback")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SCORE_KIND_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_HITS_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RankedCandidate]
    score_kind: ScoreKind
    execution: Execution
    trace: Trace
    first_stage_hits: int
    feedback: FeedbackReport
    def __init__(self, results: _Optional[_Iterable[_Union[RankedCandidate, _Mapping]]] = ..., score_kind: _Optional[_Union[ScoreKind, str]] = ..., execution: _Optional[_Union[Execution, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., first_stage_hits: _Optional[int] = ..., feedback: _Optional[_Union[FeedbackReport, _Mapping]] = ...) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("method", "top_k", "steps", "learning_rate", "min_cosine")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MIN_COSINE_FIELD_NUMBER: _ClassVar[int]
    method: FeedbackMethod
    top_k: int
    steps: int
    learning_rate: float
    min_cosine: float
    def __init__(self, method: _Optional[_Union[FeedbackMethod, str]] = ..., top_k: _Optional[int] = ..., steps: _Optional[int] = ..., learning_rate: _Optional[float] = ..., min_cosine: _Optional[float] = ...) -> None: ...

class FeedbackReport(_message.Message):
    __slots__ = ("reason", "cosine")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COSINE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    cosine: float
    def __init__(self, reason: _Optional[str] = ..., cosine: _Optional[float] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("query", "first_stage", "depth", "model", "top_n", "strategy", "instruction", "return_passages", "allow_partial", "feedback", "include_trace", "min_relevance", "max_chunks_per_doc", "on_failure", "first_stage_weight")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    RETURN_PASSAGES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TRACE_FIELD_NUMBER: _ClassVar[int]
    MIN_RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNKS_PER_DOC_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STAGE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    query: str
    first_stage: FirstStage
    depth: int
    model: str
    top_n: int
    strategy: Strategy
    instruction: str
    return_passages: bool
    allow_partial: bool
    feedback: Feedback
    include_trace: bool
    min_relevance: float
    max_chunks_per_doc: int
    on_failure: OnFailure
    first_stage_weight: FirstStageWeight
    def __init__(self, query: _Optional[str] = ..., first_stage: _Optional[_Union[FirstStage, str]] = ..., depth: _Optional[int] = ..., model: _Optional[str] = ..., top_n: _Optional[int] = ..., strategy: _Optional[_Union[Strategy, _Mapping]] = ..., instruction: _Optional[str] = ..., return_passages: _Optional[bool] = ..., allow_partial: _Optional[bool] = ..., feedback: _Optional[_Union[Feedback, _Mapping]] = ..., include_trace: _Optional[bool] = ..., min_relevance: _Optional[float] = ..., max_chunks_per_doc: _Optional[int] = ..., on_failure: _Optional[_Union[OnFailure, str]] = ..., first_stage_weight: _Optional[_Union[FirstStageWeight, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "ranker", "model_id", "model_revision", "template_sha256", "max_window_size", "default_strategy", "problem", "warning", "reads_instruction", "gives_relevance", "is_loaded", "load_s", "memory_bytes", "gpu_memory_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANKER_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    MAX_WINDOW_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    READS_INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    GIVES_RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    IS_LOADED_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    ranker: str
    model_id: str
    model_revision: str
    template_sha256: str
    max_window_size: int
    default_strategy: str
    problem: str
    warning: str
    reads_instruction: bool
    gives_relevance: bool
    is_loaded: bool
    load_s: float
    memory_bytes: int
    gpu_memory_bytes: int
    def __init__(self, name: _Optional[str] = ..., ranker: _Optional[str] = ..., model_id: _Optional[str] = ..., model_revision: _Optional[str] = ..., template_sha256: _Optional[str] = ..., max_window_size: _Optional[int] = ..., default_strategy: _Optional[str] = ..., problem: _Optional[str] = ..., warning: _Optional[str] = ..., reads_instruction: _Optional[bool] = ..., gives_relevance: _Optional[bool] = ..., is_loaded: _Optional[bool] = ..., load_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ...) -> None: ...

class Index(_message.Message):
    __slots__ = ("collection", "passages", "encoder")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    collection: str
    passages: int
    encoder: str
    def __init__(self, collection: _Optional[str] = ..., passages: _Optional[int] = ..., encoder: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "index")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    index: Index
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., index: _Optional[_Union[Index, _Mapping]] = ...) -> None: ...
