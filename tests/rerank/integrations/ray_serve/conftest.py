"""The contract's service on Ray Serve, with the names of the fixtures of `rerank serve`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.rerank.integrations.ray_serve.replicas import load_fakes, ray_cluster, ray_config
from tests.serving import free_port


@pytest.fixture(scope="module")
def ray_port() -> Iterator[int]:
    """The port of Ray Serve's proxy on a cluster that nothing was deployed on yet."""
    with ray_cluster():
        yield free_port()


@pytest.fixture(scope="module")
def channel(ray_port: int, checkpoint: Path, index_folder: Path) -> Iterator[grpc.Channel]:
    """A channel to two replicas over `index` with the models pe-rank (the default), identity and number."""
    from rerank.integrations.ray_serve.application import Scale, check, deploy

    config = ray_config(["pe-rank", "identity", "number"], ray_port)
    check(config)
    deploy(config, Scale(replicas=2), load=partial(load_fakes, checkpoint=str(checkpoint), index=str(index_folder)))
    with grpc.insecure_channel(f"127.0.0.1:{ray_port}") as opened:
        yield opened


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> RerankServiceStub:
    return RerankServiceStub(channel)
