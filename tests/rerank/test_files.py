"""Folders appear whole or not at all, whatever happens to those who make them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rerank.errors import ConfigError
from rerank.files import atomic_folder, sha256_of_files

#: Begins a folder, says so, and ends it when it is told to.
BUILDER = """
import sys
from pathlib import Path
from rerank.files import atomic_folder

with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("of the work")
    print(folder, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def building(out: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that is in the middle of making `out`, and the temporary folder in which it works."""
    command = [sys.executable, "-c", BUILDER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def make(out: Path) -> None:
    with atomic_folder(out) as folder:
        (folder / "file").write_text("whole")


def entries(folder: Path) -> list[str]:
    """Everything in a folder, hidden entries too."""
    return sorted(path.name for path in folder.iterdir())


def test_folder_appears_when_the_block_ends(out: Path) -> None:
    with atomic_folder(out) as folder:
        (folder / "file").write_text("whole")
        assert not out.exists()
        assert folder.parent == out.parent
    assert (out / "file").read_text() == "whole"
    assert entries(out.parent) == ["out"]


def test_other_users_may_read_what_appears(out: Path) -> None:
    make(out)
    assert out.stat().st_mode & 0o777 == 0o755


def test_missing_parents_are_made(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b" / "out")
    assert entries(tmp_path / "a" / "b") == ["out"]


def test_relative_path_is_meant_from_where_the_block_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with atomic_folder(Path("out")):
        monkeypatch.chdir(elsewhere)
    assert entries(tmp_path) == ["elsewhere", "out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_leaves_nothing(out: Path, error: type[BaseException]) -> None:
    def fail_halfway() -> None:
        with atomic_folder(out) as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert entries(out.parent) == []


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_existing_target_is_refused_and_untouched(out: Path, kind: str) -> None:
    if kind == "folder":
        make(out)
    else:
        out.write_text("a file")
    before = entries(out.parent)
    with pytest.raises(ConfigError, match=f"{out} exists already; remove it first or choose another folder"):
        make(out)
    assert entries(out.parent) == before


def test_killed_process_leaves_nothing_under_the_final_name_and_the_next_call_cleans_up(out: Path) -> None:
    with building(out) as (process, folder):
        process.kill()
        process.wait()
        assert folder.is_dir()
        assert not out.exists()
    make(out)
    assert entries(out.parent) == ["out"]
    assert entries(out) == ["file"]


def test_cleaning_up_is_for_the_same_target_only(out: Path) -> None:
    with building(out) as (process, folder):
        process.kill()
        process.wait()
    make(out.with_name("other"))
    assert entries(out.parent) == sorted([folder.name, "other"])


def test_folder_of_another_live_process_is_left_alone(out: Path) -> None:
    with building(out) as (_, folder):
        make(out)
        assert entries(folder) == ["half"]


def test_two_may_build_the_same_target_and_the_first_to_end_keeps_it(out: Path) -> None:
    def overtaken() -> None:
        with atomic_folder(out) as late:
            (late / "file").write_text("late")
            make(out)

    with pytest.raises(ConfigError, match="exists now; another process made it in the meantime"):
        overtaken()
    assert (out / "file").read_text() == "whole"
    assert entries(out.parent) == ["out"]


def test_live_process_ends_well_beside_others(tmp_path: Path) -> None:
    with building(tmp_path / "out") as (process, _):
        make(tmp_path / "other")
        process.communicate("go on\n", timeout=60)
        assert process.returncode == 0
    assert entries(tmp_path) == ["other", "out"]


def test_hash_of_one_file_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert sha256_of_files([tmp_path / "a"]) == hashlib.sha256(b"content").hexdigest()


def test_hash_of_several_files_knows_where_one_ends_and_in_which_order_they_come(tmp_path: Path) -> None:
    contents = {"a": b"xy", "b": b"z", "c": b"x", "d": b"yz"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    pairs = ["ab", "ba", "cd", "dc"]
    assert len({sha256_of_files([tmp_path / name for name in pair]) for pair in pairs}) == len(pairs)
    digests = "".join(hashlib.sha256(contents[name]).hexdigest() for name in "ab")
    assert sha256_of_files([tmp_path / "a", tmp_path / "b"]) == hashlib.sha256(digests.encode()).hexdigest()
