"""Takes the pictures of the inspector in docs/images, in Chromium: of a search, a comparison and an evaluation.

rerank index --collection pydoc --out indexes/pydoc
python -m scripts.inspector_screenshots --browser "$(command -v chromium)" --index indexes/pydoc
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from playwright.sync_api import Browser, sync_playwright

from scripts.service import free_port, running_service

IMAGES = Path(__file__).parents[1] / "docs" / "images"


@dataclass(frozen=True)
class Picture:
    """A state of a page, given as the fields of its link, and the size and colours in which it is shown."""

    name: str
    state: dict[str, str]
    width: int = 1280
    height: int = 1180
    scheme: Literal["dark", "light"] = "light"
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
PICTURES = (
    Picture("inspector", _QUERY),
    Picture("inspector-compared", _COMPARISON, scheme="dark"),
    Picture("inspector-narrow", _QUERY, width=390, height=1500),
    Picture("inspector-evaluation", {}, height=820, of_evaluation=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", type=Path, required=True, help="program of Chromium")
    parser.add_argument("--index", type=Path, required=True, help="index of Python's documentation")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures; default: docs/images")
    arguments = parser.parse_args()
    settings = {
        "index": str(arguments.index),
        "http": {"listen": "127.0.0.1:0", "qrels": "pydoc"},
        "models": [{"name": "pe-rank", "ranker": "pe-rank"}],
    }
    with (
        tempfile.TemporaryDirectory(prefix="rerank-pictures-") as work,
        running_service(settings) as service,
        inspected_evaluation(service.address, Path(work) / "results") as evaluation,
        sync_playwright() as playwright,
    ):
        options = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=arguments.browser, args=options)
        for picture in PICTURES:
            base = evaluation if picture.of_evaluation else f"http://{service.http_address}"
            take(browser, f"{base}/#{urlencode(picture.state)}", picture, arguments.out / f"{picture.name}.png")
        browser.close()


@contextmanager
def inspected_evaluation(address: str, results: Path) -> Iterator[str]:
    """The address of `rerank inspect` for an evaluation of PE-Rank in the service at `address`."""
    evaluate = ["--target", address, "--collection", "pydoc", "--model", "pe-rank", "--out", str(results)]
    subprocess.run([sys.executable, "-m", "rerank_eval.beir", *evaluate], check=True)
    listen = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rerank.commands.cli", "inspect", str(results), "--listen", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # is written when it listens
            yield f"http://{listen}"
        finally:
            process.kill()


def take(browser: Browser, url: str, picture: Picture, path: Path) -> None:
    """Opens the page, waits for its content, and writes what is in view."""
    size = {"width": picture.width, "height": picture.height}
    page = browser.new_page(viewport=size, color_scheme=picture.scheme)
    page.goto(url)
    page.locator(".ranking, .queries").first.wait_for(timeout=120_000)
    page.locator("h2").first.click()  # takes the focus from the query
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main()
