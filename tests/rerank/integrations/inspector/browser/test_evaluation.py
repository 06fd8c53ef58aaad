"""The page of `rerank inspect` in a real browser."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette

from rerank.integrations.inspector.evaluation import Evaluation, read_evaluation
from rerank.integrations.inspector.evaluation_app import evaluation_app
from tests.browser_tabs import Tab, new_tab
from tests.rerank.integrations.inspector.results import FIRST_STAGE, write_system

pytestmark = pytest.mark.browser

BETTER = {"q1": ("tides", "moon", "glacier", "desert"), "q2": ("flea", "flea-bite", "cello")}


@contextmanager
def serving_app(app: Starlette) -> Iterator[str]:
    """Serves an application in another thread; yields its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def evaluation(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    out = tmp_path_factory.mktemp("results")
    write_system(out / "number", {"ranker": "number"}, BETTER, collection)
    write_system(out / "oracle", {"ranker": "oracle"}, FIRST_STAGE, collection, execution={})
    return read_evaluation(out)


@pytest.fixture(scope="module")
def evaluation_base(evaluation: Evaluation) -> Iterator[str]:
    with serving_app(evaluation_app(evaluation, "127.0.0.1:8081")) as address:
        yield address


@pytest.fixture
def evaluation_tab(chromium: Any, evaluation_base: str) -> Iterator[Tab]:
    yield from new_tab(chromium, evaluation_base)


def open_overview(tab: Tab) -> Any:
    page = tab.open()
    page.locator(".queries").wait_for()
    return page


def test_queries_are_sorted_by_gain_and_by_loss(evaluation_tab: Tab, evaluation: Evaluation) -> None:
    page = open_overview(evaluation_tab)
    rows = page.locator(".queries tbody tr")
    assert rows.locator(".name").all_text_contents() == ["tides of the moon", "who bites whom"]
    values = {query["query_id"]: query["values"] for query in evaluation.overview()["queries"]}
    cells = rows.first.locator("td").all_inner_texts()
    assert cells[1:3] == [f"{values['q1'][name]:.3f}" for name in ("first stage", "number")]
    page.get_by_label("Queries").select_option("loss")
    assert rows.locator(".name").all_text_contents() == ["who bites whom", "tides of the moon"]
    assert "order=loss" in page.url


def test_query_opens_its_ranking_and_the_next_one(evaluation_tab: Tab) -> None:
    page = open_overview(evaluation_tab)
    page.get_by_role("button", name="tides of the moon").click()
    page.locator(".ranking").wait_for()
    assert evaluation_tab.names("before") == list(FIRST_STAGE["q1"])
    assert evaluation_tab.names("after") == list(BETTER["q1"])
    assert page.locator(".order.after .g2 .name").all_text_contents() == ["tides"]
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Next").click()
    evaluation_tab.wait_for_title("who bites whom")
    assert evaluation_tab.names("after") == list(BETTER["q2"])
    page.go_back()
    evaluation_tab.wait_for_title("tides of the moon")
    page.get_by_role("button", name="All queries").click()
    page.locator(".queries").wait_for()


def test_ranking_is_compared_with_another_system(evaluation_tab: Tab) -> None:
    page = evaluation_tab.open(query="q1", system="number", baseline="oracle")
    assert evaluation_tab.names("before") == list(FIRST_STAGE["q1"])
    assert evaluation_tab.names("after") == list(BETTER["q1"])
    assert page.get_by_role("radio", name="A ↔ B").is_checked()
