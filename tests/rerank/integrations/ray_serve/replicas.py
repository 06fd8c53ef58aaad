"""Deployments of tests: what runs inside the replicas, and the replicas as processes of this machine."""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rerank.config import ServiceConfig
from rerank.rankers.base import Ranker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.reranker import AsyncReranker
from tests.fakes import NumberRanker
from tests.serving import config_for

ROOT = Path(__file__).parents[4]
#: Ray's name of a process that is a replica.
_TITLE = "ray::ServeReplica:"


@contextmanager
def ray_cluster() -> Iterator[None]:
    """Ray on this machine, whose processes can import the tests."""
    import ray
    from ray import serve

    from rerank.integrations.ray_serve.application import connect

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        # Four logical cores, so that Ray starts two replicas on a machine that has one core, too.
        connect(None, num_cpus=4, log_to_driver=False)
        try:
            yield
        finally:
            serve.shutdown()
            ray.shutdown()


def ray_config(names: Iterable[str], port: int, **settings: Any) -> ServiceConfig:
    """A configuration that Ray Serve can follow, with models of these names."""
    return config_for(names, listen=f"[::]:{port}", insecure=True, **settings)


def load_fakes(config: ServiceConfig, checkpoint: str = "", index: str = "") -> AsyncReranker:
    """A reranker for these names of models: "held" never answers, "broken" has failed its self-test, "pe-rank" is real,
    others are NumberRankers.

    Args:
        config: the settings, with the names of the models.
        checkpoint: the folder of pe-rank.
        index: the folder of the index, if there is one.
    """
    from rerank.models.encoder import Encoder
    from rerank.rankers.failed import FailedRanker
    from rerank.rankers.pe_rank import PERankRanker
    from rerank.reranking.registry import ModelRegistry
    from rerank.retrieval.index import Index

    encoder = Encoder(device="cpu")

    def ranker(name: str) -> Ranker:
        if name == "pe-rank":
            return PERankRanker(Path(checkpoint), encoder, "cpu")
        if name == "broken":
            return FailedRanker(name, NumberRanker().info, "its scores are wrong")
        return IdentityRanker() if name == "identity" else NumberRanker(free_batches=0 if name == "held" else math.inf)

    rankers = {model.name: ranker(model.name) for model in config.models}
    opened = Index(Path(index), encoder) if index else None
    return AsyncReranker(config, encoder, opened, ModelRegistry(config.models, rankers))


def replica_pids() -> set[int]:
    """The processes of replicas that this process started by way of Ray."""
    return {child.pid for child in psutil.Process().children(recursive=True) if _title(child).startswith(_TITLE)}


def _title(process: psutil.Process) -> str:
    """The title of a process; empty if it has ended."""
    try:
        return "".join(process.cmdline())
    except psutil.Error:
        return ""
