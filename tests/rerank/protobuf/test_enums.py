"""Every member of an enum of the service has its value in rerank.v1, and every value there its member."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from rerank.protobuf import enums
from rerank.v1 import rerank_pb2 as pb


@pytest.mark.parametrize(
    ("members", "of_proto"),
    [
        (enums.STRATEGIES, pb.StrategyKind),
        (enums.FIRST_STAGES, pb.FirstStage),
        (enums.FIRST_STAGE_KINDS, pb.FirstStageKind),
        (enums.FEEDBACK_METHODS, pb.FeedbackMethod),
        (enums.ON_FAILURE, pb.OnFailure),
        (enums.SCORE_KINDS, pb.ScoreKind),
        (enums.COMPLETENESS, pb.Completeness),
    ],
)
def test_members_and_values_correspond_by_their_names(members: Mapping[Enum, int], of_proto: Any) -> None:
    kind = type(next(iter(members)))
    assert set(members) == set(kind)
    by_name = {of_proto.Name(value): member.name for member, value in members.items()}
    unspecified, *others = of_proto.keys()
    assert unspecified.endswith("_UNSPECIFIED")
    prefix = unspecified.removesuffix("UNSPECIFIED")
    assert by_name == {name: name.removeprefix(prefix) for name in others}
