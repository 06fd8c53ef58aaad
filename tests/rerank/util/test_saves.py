"""Sizes that show a cut file, and content that is on disk before its name."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rerank.util.files import atomic_folder
from rerank.util.saves import damage_of, read_saved, synced_sizes, write_synced


def test_cut_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"content")
    sizes = synced_sizes(tmp_path)
    assert sizes == {"inner/file": 7}
    assert damage_of(tmp_path, sizes) == damage_of(tmp_path, {}) == ""
    os.truncate(tmp_path / "inner" / "file", 3)
    assert damage_of(tmp_path, sizes) == f"{tmp_path}/inner/file has 3 of 7 bytes"
    (tmp_path / "inner" / "file").unlink()
    assert damage_of(tmp_path, sizes) == f"{tmp_path}/inner/file is missing"


@pytest.mark.parametrize("content", [b"", b'{"a":', b"\0" * 9, b"[]"])
def test_cut_json_is_none(tmp_path: Path, content: bytes) -> None:
    write_synced(tmp_path / "a.json", {"a": 1})
    assert read_saved(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.json").write_bytes(content)
    assert read_saved(tmp_path / "a.json") is None


def test_content_is_on_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[str]()

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def checked(rename: Any) -> Any:
        def renamed(source: Path, to: Path) -> Any:
            assert {path.name for path in [source, *Path(source).rglob("*")]} <= set(synced)
            synced.clear()
            return rename(source, to)

        return renamed

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", checked(os.replace))
    monkeypatch.setattr(Path, "rename", checked(Path.rename))
    write_synced(tmp_path / "a.json", {})
    assert synced == [tmp_path.name]
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").touch()
    assert synced == [tmp_path.name]


def test_folder_that_cannot_be_synced_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "a file system of a network")

    monkeypatch.setattr(os, "fsync", fsync)
    write_synced(tmp_path / "a.json", {"a": 1})
    assert read_saved(tmp_path / "a.json") == {"a": 1}
