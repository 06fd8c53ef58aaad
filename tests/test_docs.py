"""The documentation is short and agrees with the code: links, paths, definitions, scripts that are gone."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import grpc
import pytest

from rerank.config.named import BUNDLED
from rerank.config.settings import Settings
from rerank.errors import RerankError
from rerank.ports.http.problem import HTTP_STATUS
from rerank.readers.candidates import FIELDS
from rerank.v1 import rerank_pb2 as pb
from tests.doc_pages import pages

ROOT = Path(__file__).parent.parent
PAGES = pages()
CARDS = [ROOT / "SECURITY.md", *sorted((ROOT / "rerank" / "checkpoints").glob("*/README.md"))]

#: Target of a Markdown link or image that is not a URL.
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
#: A link to the definition of a class or a function.
DEFINITION = re.compile(r"\[`((?!\w+\.py)[\w.]+)`\]\(([\w./-]+\.py)\)")
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


def test_links_to_definitions_name_what_their_file_defines() -> None:
    found = 0
    for page in PAGES:
        for name, path in DEFINITION.findall(page.read_text(encoding="utf-8")):
            source = (page.parent / path).read_text(encoding="utf-8")
            last = name.rpartition(".")[2]
            assert re.search(rf"^\s*(async def|def|class) {last}\b", source, re.MULTILINE), (
                f"{page.name}: {name}, {path}"
            )
            found += 1
    assert found


def test_described_cascade_reads_as_many_passages_as_it_does() -> None:
    for page in ("rerank/config/service.py", "docs/guide/models.md"):
        said = re.findall(r"FIRST (?:then|for)\s+the best (\d+)", (ROOT / page).read_text(encoding="utf-8"))
        assert set(said) == {str(BUNDLED["pe-rank-first"].window_size)}, page


@pytest.mark.parametrize(
    "error", [error for error in RerankError.__subclasses__() if error.__module__ == "rerank.errors"]
)
def test_page_of_statuses_has_every_exception(error: type[RerankError]) -> None:
    page = (ROOT / "docs/reference/statuses.md").read_text(encoding="utf-8")
    http = HTTP_STATUS[grpc.StatusCode[error.grpc_status]].value
    assert f"| `{error.grpc_status}` | {http} | `{error.reason}` | `{error.__name__}` |" in page


def test_table_of_candidates_has_the_fields_of_each_form() -> None:
    page = (ROOT / "docs/guide/serve.md").read_text(encoding="utf-8")
    table = re.findall(r"^\|.*$", page.partition("## Candidates")[2].partition("\n## ")[0], re.MULTILINE)
    rows = [[re.findall(r"`(\w+)`", cell) for cell in row.split("|")[2:5]] for row in table[2:]]
    of_python, of_grpc, of_cohere = ([name for row in rows for name in row[column]] for column in range(3))
    assert set(of_python) == {*FIELDS}
    assert set(of_grpc) == set(pb.Candidate.DESCRIPTOR.fields_by_name)
    assert set(of_cohere) <= {"text", "title"}


def test_reference_has_every_class_of_settings() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    classes = [Settings]
    for found in classes:
        classes += found.__subclasses__()
    stated = {f"{found.__module__}.{found.__name__}" for found in classes[1:] if not found.__name__.startswith("_")}
    named = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    assert {name for name in stated if name.startswith("rerank.config.")} <= named
    for name in named:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
