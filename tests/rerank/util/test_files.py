"""Atomic files and folders: complete or absent, also after exceptions and kills; SHA-256 of files."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rerank.errors import ConfigError
from rerank.util.files import (
    _folder_of_process,
    atomic_file,
    atomic_folder,
    cached_folder,
    check_inputs,
    damage_of,
    denied,
    read_text,
    synced_sizes,
)
from rerank.util.json_files import write_synced
from tests.other_user import other_user, others_can_reach

#: Starts to write the folder argv[1], prints the temporary folder, and finishes when it reads a line.
BUILDER = """
import sys
from pathlib import Path
from rerank.util.files import atomic_folder

with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print(folder, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def building(out: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that is writing the folder `out`, and its temporary folder."""
    command = [sys.executable, "-c", BUILDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, Path(process.stdout.readline().strip())  # type: ignore[union-attr]
        finally:
            process.kill()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def create(out: Path) -> None:
    with atomic_folder(out) as folder:
        (folder / "file").write_text("complete")


def entries(folder: Path) -> list[str]:
    """The names in a folder, including hidden ones."""
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_when_the_block_ends_for_all_users_also_in_a_new_folder(tmp_path):
    for out in (tmp_path / "out", tmp_path / "a" / "b" / "out"):
        with atomic_folder(out) as folder:
            (folder / "file").write_text("complete")
            assert not out.exists()
            assert folder.parent == out.parent
        assert (out / "file").read_text() == "complete"
        assert entries(out.parent) == ["out"]
        assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("umask", "folders", "files"), [(0o022, 0o755, 0o644), (0o027, 0o750, 0o640)])
def test_files_that_a_library_made_for_their_owner_have_the_mode_of_the_others(out, umask, folders, files):
    """Another user could not serve trained weights: safetensors writes them with mode 600."""
    before = os.umask(umask)
    try:
        with atomic_folder(out) as folder:
            (folder / "part").mkdir()
            for path in (folder / "model.safetensors", folder / "part" / "model.safetensors"):
                save_file({"weight": np.zeros(1)}, path)
            (folder / "config.json").write_text("{}")
    finally:
        os.umask(before)
    modes = {path.relative_to(out).as_posix(): path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    of_files = dict.fromkeys(("config.json", "model.safetensors", "part/model.safetensors"), files)
    assert modes == {".": folders, "part": folders} | of_files


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_leaves_no_folder(out, error):
    def fail_halfway() -> None:
        with atomic_folder(out) as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert entries(out.parent) == []


@pytest.mark.parametrize("prepare", [create, Path.touch], ids=["folder", "file"])
def test_existing_target_is_refused_and_unchanged(out, prepare):
    prepare(out)
    with pytest.raises(ConfigError, match=f"{out} exists already; remove it first or choose another folder"):
        create(out)
    assert entries(out.parent) == ["out"]


def test_next_call_removes_and_names_the_temporary_folder_of_a_killed_process(out, caplog):
    with building(out) as (process, folder):
        process.kill()
        process.wait()
        assert folder.is_dir()
        assert not out.exists()
    create(out.with_name("other"))
    assert folder.is_dir(), "it is of another target"
    create(out)
    assert entries(out.parent) == ["other", "out"]
    assert entries(out) == ["file"]
    assert caplog.messages == [f"removed {folder}, the unfinished folder that a killed process left"]


def test_running_writer_keeps_its_folder_and_another_target_does_not_matter(out):
    with building(out) as (process, folder):
        create(out.with_name("other"))
        process.communicate("finish\n", timeout=60)
        assert process.returncode == 0
    assert entries(out.parent) == ["other", "out"]
    with building(out.with_name("third")) as (_, folder):
        create(out.with_name("third"))
        assert entries(folder) == ["half"]


def test_first_of_two_concurrent_writers_wins(out):
    def second_writer() -> None:
        with atomic_folder(out) as late:
            (late / "file").write_text("late")
            create(out)

    with pytest.raises(ConfigError, match="exists already; another process created it in the meantime"):
        second_writer()
    assert (out / "file").read_text() == "complete"
    assert entries(out.parent) == ["out"]


def test_file_is_replaced_when_the_block_ends_and_unchanged_when_it_raises(out):
    def fail_halfway() -> None:
        with atomic_file(out) as path:
            path.write_text("half")
            raise KeyboardInterrupt

    out.write_text("old")
    with atomic_file(out) as path:
        path.write_text("new")
        assert out.read_text() == "old"
    with pytest.raises(KeyboardInterrupt):
        fail_halfway()
    assert out.read_text() == "new"
    assert entries(out.parent) == ["out"]


def test_what_is_not_a_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, problem in {
        tmp_path: "it is a folder, not a file",
        tmp_path / "pipe": "it is a pipe or a device, not a file",
        Path("/dev/zero"): "it is a pipe or a device, not a file",
        tmp_path / "missing": "No such file or directory",
        tmp_path / ("x" * 5000): "File name too long",
    }.items():
        with pytest.raises(ConfigError) as caught:
            read_text(path)
        assert str(caught.value) == f"{path} cannot be read: {problem}"


def test_text_in_another_encoding_is_refused_with_its_line(out):
    out.write_bytes("first\nzweitä\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"line 2: the byte 0xE4 is not UTF-8; save the file as UTF-8$"):
        read_text(out)


def test_text_is_bounded(out):
    out.write_text("x" * 11)
    assert read_text(out, max_bytes=11) == "x" * 11
    with pytest.raises(ConfigError, match=r"has 11 bytes; a file of settings has at most 10$"):
        read_text(out, max_bytes=10)


@pytest.mark.parametrize("home", ["a file", "of another user", "none"])
def test_home_that_cannot_be_written_is_replaced_for_this_process(home, monkeypatch, caplog):
    """The service did not start."""
    with others_can_reach() as folder:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        if home == "a file":
            (folder / "rerank").touch()
        elif home == "none":
            monkeypatch.delenv("XDG_CACHE_HOME")
            monkeypatch.delenv("HOME")
            monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
        else:
            folder.chmod(0o555)
        _folder_of_process.cache_clear()
        with other_user():
            made = cached_folder("name", create)
            assert (made / "file").read_text() == "complete"
            assert not made.is_relative_to(folder)
            assert cached_folder("name", lambda _: pytest.fail("it is made once")) == made
        assert caplog.messages[0].startswith("name cannot be kept, and is made again by the next process: ")
        assert caplog.messages[0].endswith("; XDG_CACHE_HOME can name another folder for what is made once and kept")


def test_cut_and_missing_files_are_named(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"content")
    sizes = synced_sizes(tmp_path)
    assert sizes == {"inner/file": 7}
    assert damage_of(tmp_path, sizes) == damage_of(tmp_path, {}) == ""
    os.truncate(tmp_path / "inner" / "file", 3)
    assert damage_of(tmp_path, sizes) == f"{tmp_path}/inner/file has 3 of 7 bytes"
    (tmp_path / "inner" / "file").unlink()
    assert damage_of(tmp_path, sizes) == f"{tmp_path}/inner/file is missing"


def test_content_is_on_disk_before_its_name(tmp_path, monkeypatch):
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


def test_path_that_this_user_may_not_read_names_what_is_closed_and_the_way_out(tmp_path):
    with others_can_reach() as folder:
        (folder / "model").mkdir()
        path = folder / "model" / "config.json"
        path.write_text("{}")
        with other_user():
            assert denied(path) == denied(folder) == denied(folder / "missing") == ""
        path.chmod(0)
        with other_user():
            assert denied(path) == f"{path} may not be read by this user (mode 000): chmod a+r {path}"
            with pytest.raises(ConfigError, match="may not be read by this user"):
                read_text(path)
        path.parent.chmod(0)
        closed = f"{path.parent} may not be read by this user (mode 000): chmod a+rx {path.parent}"
        with other_user():
            assert denied(path) == denied(path.parent) == closed
            with pytest.raises(ConfigError, match=r"--lists: .* may not be read by this user"):
                check_inputs(SimpleNamespace(lists=path), ["lists"])
        path.parent.chmod(0o700)
