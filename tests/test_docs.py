"""Links and paths in the documentation lead to a file, and those to a heading to a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.doc_pages import pages

ROOT = Path(__file__).parent.parent
PAGES = [*pages(), ROOT / "SECURITY.md", *sorted((ROOT / "rerank" / "checkpoints").glob("*/README.md"))]

#: Target of a Markdown link or image that is not a URL.
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
#: A path of the repository in prose or code, such as `scripts/gen_proto.sh`.
MENTIONED = re.compile(r"(?<![\w/.~-])((?:docs|eval|proto|rerank|scripts|tests|training)/[\w./*-]*[\w/*])")
#: A script that is gone, with the last commit that has it.
GONE = re.compile(r"`[\w./-]+`\s+at\s+commit\s+[0-9a-f]{7}\b")


def heading_anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_heading(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in heading_anchors(linked), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_mentioned_path_exists(page: Path) -> None:
    text = GONE.sub("", re.sub(r"https?://\S+", "", page.read_text(encoding="utf-8")))
    for path in MENTIONED.findall(text):
        assert any(ROOT.glob(path.rstrip("/"))), f"{page.name} mentions {path}"
