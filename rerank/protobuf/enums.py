"""Enums of the service and of rerank.v1: one map for each, from a member to the value of the same name in messages."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from rerank.names import FeedbackMethod, FirstStage, FirstStageKind, OnFailure, StrategyKind
from rerank.types import Completeness, ScoreKind
from rerank.v1 import rerank_pb2 as pb

E = TypeVar("E", bound=Enum)


def _values(kind: type[E], values: Any, prefix: str) -> dict[E, Any]:
    return {member: values.Value(f"{prefix}_{member.name}") for member in kind}


STRATEGIES = _values(StrategyKind, pb.StrategyKind, "STRATEGY_KIND")
FIRST_STAGES = _values(FirstStage, pb.FirstStage, "FIRST_STAGE")
FIRST_STAGE_KINDS = _values(FirstStageKind, pb.FirstStageKind, "FIRST_STAGE_KIND")
FEEDBACK_METHODS = _values(FeedbackMethod, pb.FeedbackMethod, "FEEDBACK_METHOD")
ON_FAILURE = _values(OnFailure, pb.OnFailure, "ON_FAILURE")
SCORE_KINDS = _values(ScoreKind, pb.ScoreKind, "SCORE_KIND")
COMPLETENESS = _values(Completeness, pb.Completeness, "COMPLETENESS")
