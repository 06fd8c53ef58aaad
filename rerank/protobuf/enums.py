"""Enums of the service and of rerank.v1: one map for each, from the member to the value in a message."""

from __future__ import annotations

from rerank.names import FeedbackMethod, FirstStage, FirstStageKind, NearDuplicates, OnFailure, StrategyKind
from rerank.types import Completeness, ScoreKind
from rerank.v1 import rerank_pb2 as pb

STRATEGIES = {
    StrategyKind.SINGLE: pb.STRATEGY_KIND_SINGLE,
    StrategyKind.SLIDING: pb.STRATEGY_KIND_SLIDING,
    StrategyKind.TOP_DOWN: pb.STRATEGY_KIND_TOP_DOWN,
    StrategyKind.CASCADE: pb.STRATEGY_KIND_CASCADE,
}
FIRST_STAGES = {
    FirstStage.BM25: pb.FIRST_STAGE_BM25,
    FirstStage.DENSE: pb.FIRST_STAGE_DENSE,
    FirstStage.LEARNED_SPARSE: pb.FIRST_STAGE_LEARNED_SPARSE,
    FirstStage.HYBRID_RRF: pb.FIRST_STAGE_HYBRID_RRF,
    FirstStage.HYBRID_Z_SCORE: pb.FIRST_STAGE_HYBRID_Z_SCORE,
    FirstStage.HYBRID_BM25_SPARSE: pb.FIRST_STAGE_HYBRID_BM25_SPARSE,
    FirstStage.HYBRID_DENSE_SPARSE: pb.FIRST_STAGE_HYBRID_DENSE_SPARSE,
    FirstStage.HYBRID_ALL: pb.FIRST_STAGE_HYBRID_ALL,
}
FIRST_STAGE_KINDS = {
    FirstStageKind.LEXICAL: pb.FIRST_STAGE_KIND_LEXICAL,
    FirstStageKind.HYBRID: pb.FIRST_STAGE_KIND_HYBRID,
    FirstStageKind.NEURAL: pb.FIRST_STAGE_KIND_NEURAL,
}
FEEDBACK_METHODS = {
    FeedbackMethod.WEIGHTED_RANKNET: pb.FEEDBACK_METHOD_WEIGHTED_RANKNET,
    FeedbackMethod.KL: pb.FEEDBACK_METHOD_KL,
    FeedbackMethod.ROCCHIO: pb.FEEDBACK_METHOD_ROCCHIO,
    FeedbackMethod.E2RANK: pb.FEEDBACK_METHOD_E2RANK,
}
ON_FAILURE = {
    OnFailure.ERROR: pb.ON_FAILURE_ERROR,
    OnFailure.FIRST_STAGE: pb.ON_FAILURE_FIRST_STAGE,
}
NEAR_DUPLICATES = {
    NearDuplicates.KEEP: pb.NEAR_DUPLICATES_KEEP,
    NearDuplicates.DROP: pb.NEAR_DUPLICATES_DROP,
}
SCORE_KINDS = {
    ScoreKind.RANK: pb.SCORE_KIND_RANK,
    ScoreKind.WINDOW_LOG_PROB: pb.SCORE_KIND_WINDOW_LOG_PROB,
    ScoreKind.POINTWISE: pb.SCORE_KIND_POINTWISE,
    ScoreKind.POINTWISE_PROBABILITY: pb.SCORE_KIND_POINTWISE_PROBABILITY,
    ScoreKind.WINDOW_SCORE: pb.SCORE_KIND_WINDOW_SCORE,
}
COMPLETENESS = {
    Completeness.FULL: pb.COMPLETENESS_FULL,
    Completeness.PARTIAL: pb.COMPLETENESS_PARTIAL,
    Completeness.NONE: pb.COMPLETENESS_NONE,
}
