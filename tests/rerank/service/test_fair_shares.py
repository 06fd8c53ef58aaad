"""Each key or connection is a caller with a share of the engine."""

from collections.abc import Sequence
from typing import Any

import grpc

from rerank.access.keys import CallerLimits, add_key
from rerank.client import Credentials
from rerank.engine.request import ModelPhase
from rerank.engine.scheduler import Work
from rerank.reranking.reranker import AsyncReranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.serving import TIMEOUT_S, numbered_candidates, reranker_of, serving

REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))
#: Separate connections, although the addresses are equal.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def callers_seen(reranker: AsyncReranker) -> list[str]:
    """The caller of each window that is ranked from now on."""
    seen: list[str] = []

    def on_batch(phase: ModelPhase, batch: Sequence[Work[Any, Any]], seconds: float) -> None:
        seen.extend(work.request.usage.name for work in batch)

    reranker.engine.observe_batches(on_batch)
    return seen


def test_without_keys_each_connection_is_a_caller():
    reranker = reranker_of({"number": NumberRanker()})
    seen = callers_seen(reranker)
    with serving(reranker) as served:
        for _ in range(2):
            with grpc.insecure_channel(served.address, options=OWN_CONNECTION) as channel:
                for _ in range(2):
                    RerankServiceStub(channel).Rerank(REQUEST, timeout=TIMEOUT_S)
    per_call = len(seen) // 4
    first, second = seen[0], seen[-1]
    assert seen == [first] * (2 * per_call) + [second] * (2 * per_call)
    assert first != second
    assert first.startswith("ipv4:127.0.0.1:")


def test_with_keys_each_key_is_a_caller_on_any_connection(tmp_path):
    path = tmp_path / "keys.yaml"
    keys = [add_key(path, name, CallerLimits()) for name in ("frontend", "nightly")]
    reranker = reranker_of({"number": NumberRanker()}, keys=path)
    seen = callers_seen(reranker)
    with serving(reranker) as served:
        for key in (*keys, keys[0]):
            with grpc.insecure_channel(served.address, options=OWN_CONNECTION) as channel:
                metadata = Credentials(api_key=key).metadata
                RerankServiceStub(channel).Rerank(REQUEST, timeout=TIMEOUT_S, metadata=metadata)
    per_call = len(seen) // 3
    assert seen == ["frontend"] * per_call + ["nightly"] * per_call + ["frontend"] * per_call
