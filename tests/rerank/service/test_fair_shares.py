"""Each key or connection is a caller with a share of the engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from rerank.access.keys import CallerLimits, add_key
from rerank.client import Credentials
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.serving import OWN_CONNECTION, REQUEST, TIMEOUT_S, Served, reranker_of, serving


@contextmanager
def observed_service(**settings: Any) -> Iterator[tuple[Served, list[str]]]:
    """A service, and the caller of each window that it ranks."""
    reranker, seen = reranker_of({"number": NumberRanker()}, **settings), list[str]()
    reranker.engine.observe_batches(lambda _, batch, __: seen.extend(work.request.usage.name for work in batch))
    with serving(reranker) as served:
        yield served, seen


def ask_on_a_new_connection(served: Served, times: int, key: str | None = None) -> None:
    with grpc.insecure_channel(served.address, options=OWN_CONNECTION) as channel:
        for _ in range(times):
            metadata = Credentials(api_key=key).metadata
            RerankServiceStub(channel).Rerank(REQUEST, timeout=TIMEOUT_S, metadata=metadata)


def test_without_keys_each_connection_is_a_caller():
    with observed_service() as (served, seen):
        for _ in range(2):
            ask_on_a_new_connection(served, 2)
    per_call = len(seen) // 4
    first, second = seen[0], seen[-1]
    assert seen == [first] * (2 * per_call) + [second] * (2 * per_call)
    assert first != second
    assert first.startswith("ipv4:127.0.0.1:")


def test_with_keys_each_key_is_a_caller_on_any_connection(tmp_path):
    path = tmp_path / "keys.yaml"
    keys = [add_key(path, name, CallerLimits()) for name in ("frontend", "nightly")]
    with observed_service(keys=path) as (served, seen):
        for key in (*keys, keys[0]):
            ask_on_a_new_connection(served, 1, key)
    per_call = len(seen) // 3
    assert seen == ["frontend"] * per_call + ["nightly"] * per_call + ["frontend"] * per_call
