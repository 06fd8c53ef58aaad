"""Damaged indexes are refused when they are opened, with the file named; every byte is checked on request."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rerank.collections import Collection
from rerank.errors import IndexMismatch
from rerank.models.encoder import Encoder
from rerank.retrieval import index_format
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.index import Index, read_manifest, verify_index, write_manifest
from rerank.retrieval.index_format import check_sizes
from rerank.types import Passage
from tests.other_user import other_user, others_can_reach


@pytest.fixture
def copy(index_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(index_folder, tmp_path / "copy"))


def write_nan(path: Path) -> None:
    vectors = np.load(path)
    vectors[3] = np.nan
    np.save(path, vectors)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no passages": ("passages.sqlite", Path.unlink),
    "truncated vectors": ("vectors.npy", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "too few vectors": ("vectors.npy", lambda path: np.save(path, np.load(path)[:-1])),
    "no vectors": ("vectors.npy", Path.unlink),
    "NaN vectors": ("vectors.npy", write_nan),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_named(copy, encoder, name, damage):
    damage(copy / name)
    with pytest.raises(IndexMismatch, match=rf"{name} is damaged: .*; copy the index again, or build it again"):
        Index(copy, encoder)


@pytest.mark.parametrize("name", ["vectors.npy", "passages.sqlite"])
def test_flipped_byte_of_a_large_file_is_found_on_request(copy, encoder, monkeypatch, name):
    """Its hash would take long whenever the index is opened."""
    assert verify_index(copy) == read_manifest(copy)
    flip_a_byte(copy / name)
    monkeypatch.setattr(index_format, "_SMALL_BYTES", 100)
    Index(copy, encoder)
    with pytest.raises(IndexMismatch, match=rf"{name} is damaged: its SHA-256"):
        verify_index(copy)


def test_damaged_beginning_of_a_large_file_is_found_when_the_index_is_opened(copy, encoder, monkeypatch):
    monkeypatch.setattr(index_format, "_SMALL_BYTES", 1000)
    monkeypatch.setattr(index_format, "_HEAD_BYTES", 300)
    write_manifest(copy, read_manifest(copy))
    assert verify_index(copy).files["vectors.npy"].head_sha256
    whole = (copy / "vectors.npy").read_bytes()
    for place, is_found in ((299, True), (300, False)):
        content = bytearray(whole)
        content[place] ^= 0x10
        (copy / "vectors.npy").write_bytes(content)
        if is_found:
            with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: the SHA-256 of its beginning"):
                Index(copy, encoder)
        else:
            Index(copy, encoder)


def test_flipped_byte_of_bm25_is_found_and_the_command_that_checks_the_whole_index_is_named(copy, encoder):
    path = max((copy / "bm25").iterdir(), key=lambda file: file.stat().st_size)
    flip_a_byte(path)
    with pytest.raises(IndexMismatch, match=rf"{path.name} is damaged: its SHA-256.*`rerank verify {copy}`"):
        Index(copy, encoder)


# --- files of another index with as many passages


@pytest.fixture(scope="module")
def both(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two indexes of twelve passages with the same ids, lengths and settings, and other words."""
    root = tmp_path_factory.mktemp("both")
    for words in ("the moon turns", "the flea jumps"):
        passages = [Passage(f"d{number:02}", f"{words} {number:02}") for number in range(12)]
        collection = Collection("twelve", passages.__iter__)
        build_index(collection, root / words[4:8], encoder, settings=BuildSettings("hnsw"))
    return root / "moon", root / "flea"


@pytest.mark.parametrize("name", ["vectors.npy", "passages.sqlite", "hnsw.faiss", "bm25", "manifest.json"])
def test_file_of_another_index_is_refused_and_named(both, tmp_path, encoder, name):
    folder = Path(shutil.copytree(both[0], tmp_path / "mixed"))
    if name == "bm25":
        shutil.rmtree(folder / name)
        shutil.copytree(both[1] / name, folder / name)
    else:
        shutil.copy(both[1] / name, folder / name)
    named = r"(vectors\.npy|passages\.sqlite|hnsw\.faiss|bm25/.*)" if name == "manifest.json" else name
    for check in (lambda: Index(folder, encoder), lambda: verify_index(folder)):
        with pytest.raises(IndexMismatch, match=rf"/{named}.* is damaged: .*manifest\.json") as refused:
            check()
        assert "\n" not in str(refused.value)


def test_file_that_may_not_be_read_is_named_with_the_way_out(index_folder):
    with others_can_reach() as folder:
        index = folder / "index"
        shutil.copytree(index_folder, index)
        for name in ("vectors.npy", "manifest.json"):
            (index / name).chmod(0)
            with other_user(), pytest.raises(IndexMismatch, match=rf"^{index / name} may not be read .* chmod a\+r"):
                check_sizes(index)
