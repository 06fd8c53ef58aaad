"""The site of the documentation on a phone and on a desk: layout, search, colours, and nothing from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.browser_tabs import new_tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
WIDTHS = (400, 1200)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder without a line per request."""

    def log_message(self, *_: object) -> None:
        pass


def pages(nav: object) -> list[str]:
    """The pages of a part of the navigation in mkdocs.yml, as files of the site."""
    if isinstance(nav, str):
        return [f"{nav.removesuffix('.md')}.html"]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages(part)]  # type: ignore[attr-defined]


PAGES = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site; the build ends with an error for a link that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def addresses_asked_for(page: Page) -> list[str]:
    """The addresses of all requests that the page makes from now on."""
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    return urls


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_width_and_loads_nothing_from_elsewhere(chromium: Browser, site: str, width: int) -> None:
    for tab in new_tab(chromium, site, viewport={"width": width, "height": 900}):
        asked = addresses_asked_for(tab.page)
        for name in PAGES:
            tab.page.goto(f"{site}/{name}")
            assert tab.page.locator("h1").first.is_visible(), name
            wide = tab.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} pixels wide on a screen of {width}"
            text = tab.page.locator("article.md-content__inner").bounding_box()
            assert text, name
            assert text["x"] >= 0, name
            assert text["width"] >= min(width, 600) * 0.85, f"{name}: the text has {text['width']} of {width} pixels"
            broken = tab.page.evaluate(
                "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
            )
            assert broken == [], name
        assert len(asked) >= len(PAGES)
        assert [url for url in asked if not url.startswith((site, "data:"))] == []


def test_search_finds_a_page_of_the_guide(chromium: Browser, site: str) -> None:
    for tab in new_tab(chromium, site):
        tab.page.goto(f"{site}/index.html")
        # By keys, as a reader does: a value that is set at once can come before the page listens.
        tab.page.locator("input.md-search__input").press_sequentially("move from another reranker", delay=40)
        tab.page.locator(".md-search-result__item a[href*='guide/move']").first.wait_for()
