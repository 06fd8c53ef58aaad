"""Takes the pictures of the inspector in docs/, in Chromium, from a running service and a served evaluation.

rerank serve --index INDEX --http --qrels pydoc                   # INDEX of `rerank demo`
eval-beir --collection pydoc --index INDEX --ranker pe-rank --out RESULTS
rerank inspect RESULTS
python scripts/inspector_screenshots.py --browser "$(command -v chromium)"
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, sync_playwright


@dataclass(frozen=True)
class Picture:
    """A state of a page, given as the fields of its link, and the size and colours in which it is shown."""

    name: str
    state: dict[str, str]
    width: int = 1280
    height: int = 1180
    scheme: str = "light"
    of_evaluation: bool = False


_QUERY = {"query": "is this ip inside a subnet", "a.model": "pe-rank"}
_COMPARISON = {
    "query": "list all python files in a folder including subfolders",
    "a.model": "pe-rank",
    "compare": "1",
    "b.stage": "bm25",
    "b.model": "pe-rank",
    "view": "ab",
}
_PICTURES = (
    Picture("inspector", _QUERY),
    Picture("inspector-compared", _COMPARISON, scheme="dark"),
    Picture("inspector-narrow", _QUERY, width=390, height=1500),
    Picture("inspector-evaluation", {}, height=820, of_evaluation=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", type=Path, required=True, help="program of Chromium")
    parser.add_argument("--service", default="http://127.0.0.1:8080", help="address of the service's HTTP port")
    parser.add_argument("--evaluation", default="http://127.0.0.1:8081", help="address of `rerank inspect`")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the pictures")
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=arguments.browser, args=["--no-sandbox", "--disable-background-networking"]
        )
        for picture in _PICTURES:
            base = arguments.evaluation if picture.of_evaluation else arguments.service
            take(browser, f"{base}/#{urlencode(picture.state)}", picture, arguments.out / f"{picture.name}.png")
        browser.close()


def take(browser: Browser, url: str, picture: Picture, path: Path) -> None:
    """Opens the page, waits for its content, and writes what is in view."""
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.scheme == "dark" else "light",
    )
    page.goto(url)
    page.locator(".ranking, .queries").first.wait_for(timeout=120_000)
    page.locator("h2").first.click()  # takes the focus from the query
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main()
