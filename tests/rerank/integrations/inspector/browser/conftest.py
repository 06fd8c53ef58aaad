"""Chromium, driven by Playwright, and a service whose inspector it opens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from rerank.rankers.identity import IdentityRanker
from rerank.retrieval.index import Index
from tests.eval.data import judged_collection
from tests.fakes import NumberRanker
from tests.serving import HTTP, http_service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Without these, Chromium calls its publisher.
OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
#: Tests may run as root in a container, where Chromium has no sandbox.
ARGUMENTS = ("--no-sandbox", *OFFLINE)


@dataclass
class Tab:
    """A tab of the browser on one of our pages, with what went wrong on it.

    Attributes:
        base: the address of the service.
        errors: errors of scripts and lines of the console; a test that expects some removes them.
    """

    page: Page
    base: str
    errors: list[str] = field(default_factory=list)

    def open(self, **state: object) -> Page:
        """Opens the page with this state in its link, and waits for the answer if there is a query."""
        fragment = urlencode({name.replace("__", "."): value for name, value in state.items()})
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}/#{fragment}")
        if "query" in state:
            self.page.locator(".ranking, .problem").first.wait_for()
        return self.page

    def wait_for_title(self, start: str) -> None:
        from playwright.sync_api import expect

        expect(self.page).to_have_title(re.compile(f"^{re.escape(start)}"))

    def names(self, side: str) -> list[str]:
        """The doc_ids of an order, "before" or "after"."""
        found: list[str] = self.page.locator(f".order.{side} .name").all_text_contents()
        return found

    def accessibility_problems(self) -> list[str]:
        """What axe-core finds on the page: contrast, names of controls, roles, headings and the like."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]
        ]

    def expected_refusals(self) -> int:
        """The number of refused calls that the console reported so far; it forgets them."""
        refused = [error for error in self.errors if "Failed to load resource" in error]
        for error in refused:
            self.errors.remove(error)
        return len(refused)


@pytest.fixture(scope="session")
def chromium(request: pytest.FixtureRequest) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = request.config.getoption("--browser")
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


def new_tab(chromium: Browser, base: str, **settings: Any) -> Iterator[Tab]:
    """A tab of a fresh profile. At its end, nothing may have gone wrong that the test did not expect."""
    context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
    context.set_default_timeout(15_000)
    tab = Tab(context.new_page(), base)
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("console", lambda line: tab.errors.append(line.text) if line.type in ("error", "warning") else None)
    yield tab
    context.close()
    assert tab.errors == []


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
    rankers = {"number": NumberRanker(), "identity": IdentityRanker()}
    with http_service(rankers, index, http=HTTP | {"qrels": str(collection)}) as served:
        yield f"http://{served.http.address}"


@pytest.fixture
def tab(chromium: Browser, base: str) -> Iterator[Tab]:
    yield from new_tab(chromium, base)
