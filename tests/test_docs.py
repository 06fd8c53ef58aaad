"""The documentation agrees with the code: links, paths, settings, statuses, commands and snippets."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from scripts import update_doc_links

ROOT = Path(__file__).parent.parent
PAGES = update_doc_links.pages()
CARDS = sorted((ROOT / "rerank" / "checkpoints").glob("*/README.md"))
README_LINES, README_WORDS = 90, 700

#: Target of a Markdown link or image that is not a URL.
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
#: A path of the repository in prose or code, such as `scripts/gen_proto.sh`; NAME and * stand for any name.
MENTIONED = re.compile(r"(?<![\w/.~-])((?:docs|eval|proto|rerank|scripts|tests|training)/[\w./*-]*[\w/*])")
#: A script that is gone, with the last commit that has it.
GONE = re.compile(r"`([\w./-]+)` at commit\s([0-9a-f]{7})\b")


def heading_anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *CARDS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_heading(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in heading_anchors(linked), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.parametrize("page", [*PAGES, *CARDS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_mentioned_path_exists(page: Path) -> None:
    text = GONE.sub("", re.sub(r"https?://\S+", "", page.read_text(encoding="utf-8")))
    for path in MENTIONED.findall(text):
        assert any(ROOT.glob(path.rstrip("/").replace("NAME", "*"))), f"{page.name} mentions {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_script_that_is_gone_is_in_the_commit_beside_it(page: Path) -> None:
    for path, commit in GONE.findall(page.read_text(encoding="utf-8")):
        if in_history(commit):
            assert in_history(f"{commit}:{path}"), f"{page.name}: commit {commit} has no {path}"


def in_history(name: str) -> bool:
    """True if this checkout has the history, and this object in it."""
    return subprocess.run(["git", "cat-file", "-e", name], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_line_links_point_to_the_definition_of_their_name() -> None:
    found = 0
    for page in PAGES:
        for name, path, line in update_doc_links.LINE_LINK.findall(page.read_text(encoding="utf-8")):
            text = (page.parent / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
            last = name.rpartition(".")[2]
            assert re.match(rf"\s*(async def|def|class) {last}\b", text), (
                f"{page.name}: {name} is not at {path}#L{line}"
            )
            found += 1
    assert found


def test_line_links_are_up_to_date() -> None:
    outdated = [page.name for page in PAGES if update_doc_links.updated(page) != page.read_text(encoding="utf-8")]
    assert not outdated, f"{outdated} are out of date; run `python scripts/update_doc_links.py`"


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= README_LINES
    assert len(text.split()) <= README_WORDS


def table_rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_service_page_lists_every_status_and_reason() -> None:
    from rerank.service import status

    rows = list(table_rows((ROOT / "docs" / "service.md").read_text(encoding="utf-8")))
    listed = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows if len(row) == 4}
    for code, reason in status.STATUS.values():
        assert code.name in listed
        is_raised_by_requests = not reason.endswith(
            ("CONFIG_ERROR", "COLLECTION_ERROR", "MISMATCH", "CHECKPOINT_ERROR", "USAGE_ERROR")
        )
        assert not is_raised_by_requests or reason in listed[code.name]
    assert {code for code in listed if code.isupper()} <= {code.name for code in grpc.StatusCode}
