"""The protobuf message of the command-line options about the strategy."""

from __future__ import annotations

from rerank.names import StrategyKind
from rerank.v1 import rerank_pb2 as pb


def strategy_message(
    kind: StrategyKind | None,
    window_size: int,
    stride: int,
    early_stop: bool = False,
    preranker: str = "",
    interpolation: float | None = None,
) -> pb.Strategy:
    """The strategy of a request; None, 0 and "" stand for the model's default, except that interpolation 0 is none."""
    return pb.Strategy(
        kind=f"STRATEGY_KIND_{kind.name if kind else 'UNSPECIFIED'}",
        window_size=window_size,
        stride=stride,
        early_stop=early_stop,
        preranker=preranker,
        interpolation=None if interpolation is None else pb.Interpolation(first_stage=interpolation),
    )
