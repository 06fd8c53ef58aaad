"""The inspector of a service with API keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank.access.keys import CallerLimits, add_key
from tests.fakes import NumberRanker
from tests.rerank.integrations.inspector.browser.tabs import new_tab
from tests.serving import http_service

pytestmark = pytest.mark.browser


@pytest.fixture
def guarded(index: Any, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a service with keys, and a key."""

    key = add_key(tmp_path / "keys", "tester", CallerLimits())
    with http_service({"number": NumberRanker()}, index, keys=tmp_path / "keys") as served:
        yield f"http://{served.http.address}", key


def test_key_is_asked_for_and_is_never_part_of_the_link(chromium, guarded):
    base, key = guarded
    for tab in new_tab(chromium, base):
        page = tab.open()
        page.locator(".problem").wait_for()
        assert "API key" in page.get_by_role("alert").inner_text()
        page.get_by_label("Query").fill("moon")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Rank", exact=True).click()
        page.locator(".ranking").wait_for()
        page.get_by_label("Query").fill("bread")
        page.get_by_role("button", name="Rank", exact=True).click()
        tab.wait_for_title("bread")
        assert key not in page.url
        page.reload()
        page.locator(".ranking").wait_for()
        assert tab.expected_refusals() == 1
