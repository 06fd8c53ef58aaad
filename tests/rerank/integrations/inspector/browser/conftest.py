"""A service whose inspector the browser opens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from rerank.rankers.identity import IdentityRanker
from tests.fakes import NumberRanker
from tests.rerank.integrations.inspector.browser.tabs import Tab, new_tab
from tests.rerank.integrations.inspector.browser.tabs import chromium as chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index


@pytest.fixture(scope="session")
def base(encoder: Encoder, index: Index) -> Iterator[str]:
    """The address of a service over `index` with the models number (the default) and identity."""
    from tests.http_client import http_service

    rankers: dict[str, Any] = {"number": NumberRanker(), "identity": IdentityRanker()}
    with http_service(encoder, rankers, index) as (_, client):
        yield f"http://{client.address}"


@pytest.fixture
def tab(chromium: Browser, base: str) -> Iterator[Tab]:
    yield from new_tab(chromium, base)
