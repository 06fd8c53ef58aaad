"""Files of another index with as many passages: refused at opening and by `rerank verify`, with the file named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rerank.collections import open_collection
from rerank.errors import IndexMismatch
from rerank.models.encoder import Encoder
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.index import Index, verify_index


@pytest.fixture(scope="module")
def both(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two indexes of twelve passages with the same ids, lengths and settings, and other words."""
    root, folders = tmp_path_factory.mktemp("both"), []
    for name, words in (("one", "the moon turns"), ("two", "the flea jumps")):
        corpus = root / f"{name}-collection"
        corpus.mkdir()
        rows = [{"_id": f"d{number:02}", "title": "", "text": f"{words} {number:02}"} for number in range(12)]
        (corpus / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        build_index(open_collection(str(corpus)), root / name, encoder, settings=BuildSettings("hnsw"))
        folders.append(root / name)
    return folders[0], folders[1]


@pytest.fixture
def mixed(both: tuple[Path, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the first index with a file or a folder of the second."""

    def make(name: str) -> Path:
        copy = Path(shutil.copytree(both[0], tmp_path / "mixed"))
        source, target = both[1] / name, copy / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return copy

    return make


FILES = {
    "vectors.npy": r"vectors\.npy",
    "passages.sqlite": r"passages\.sqlite",
    "hnsw.faiss": r"hnsw\.faiss",
    "bm25": r"bm25/.*",
    "manifest.json": r"(vectors\.npy|passages\.sqlite|hnsw\.faiss|bm25/.*)",
}


@pytest.mark.parametrize(("name", "named"), FILES.items(), ids=FILES)
def test_file_of_another_index_is_refused_and_named(
    mixed: Callable[[str], Path], encoder: Encoder, name: str, named: str
) -> None:
    folder = mixed(name)
    for check in (lambda: Index(folder, encoder), lambda: verify_index(folder)):
        with pytest.raises(IndexMismatch, match=rf"/{named} is damaged: .*manifest\.json") as refused:
            check()
        assert "\n" not in str(refused.value)
