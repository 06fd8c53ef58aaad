"""A service in the test's process, in the place of the one that a trial or a benchmark starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rerank.rankers.identity import IdentityRanker

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index
    from scripts.service import Service


@pytest.fixture(scope="session")
def running(encoder: Encoder, sparse_index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serves the index, and the identity under the names of the default models."""
    from rerank.reranking.registry import ModelRegistry
    from rerank.reranking.reranker import AsyncReranker
    from scripts.service import Service
    from tests.serving import config_for, serving

    rankers = dict.fromkeys(("identity", "pe-rank", "default"), IdentityRanker())
    config = config_for(rankers)
    log = tmp_path_factory.mktemp("service") / "serve.log"
    log.write_text("HTTP at http://127.0.0.1:1\n", encoding="utf-8")
    process: Any = SimpleNamespace(pid=os.getpid())
    with serving(AsyncReranker(config, encoder, sparse_index, ModelRegistry(config.models, rankers))) as served:
        yield Service(served.address, process, log, None)
