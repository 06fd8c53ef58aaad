"""A service whose inspector the browser opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rerank.config import HttpConfig
from rerank.rankers.identity import IdentityRanker
from tests.eval.data import judged_collection
from tests.fakes import NumberRanker
from tests.rerank.integrations.inspector.browser.tabs import Tab, new_tab
from tests.rerank.integrations.inspector.browser.tabs import chromium as chromium
from tests.serving import http_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from rerank.retrieval.index import Index


@pytest.fixture(scope="session")
def collection(beir_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PASSAGES in BEIR layout, with queries and judgements."""
    queries = {"q1": "tides of the moon", "q2": "who bites whom"}
    grades = {"q1": {"moon": 1, "tides": 2, "desert": 0}, "q2": {"flea-bite": 1}}
    folder = tmp_path_factory.mktemp("judged") / "twelve"
    return judged_collection(folder, beir_folder / "corpus.jsonl", queries, grades)


@pytest.fixture(scope="session")
def base(index: Index, collection: Path) -> Iterator[str]:
    """The address of a service over `index` with judgements and the models number (the default) and identity."""

    rankers: dict[str, Any] = {"number": NumberRanker(), "identity": IdentityRanker()}
    http = HttpConfig(listen="127.0.0.1:0", qrels=str(collection))
    with http_service(rankers, index, http=http) as served:
        yield f"http://{served.http.address}"


@pytest.fixture
def tab(chromium: Browser, base: str) -> Iterator[Tab]:
    yield from new_tab(chromium, base)
