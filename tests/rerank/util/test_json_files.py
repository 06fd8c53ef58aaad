"""JSON files of this package: damaged and edited ones are refused with one line."""

import errno
import os

import pytest

from rerank.errors import ConfigError
from rerank.util.json_files import read_json, read_saved, write_synced


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", ": line 1: this is not JSON"),
        (b'{"a":\n 1', ": line 2: this is not JSON"),
        (b"[1]", ": expected an object in braces, found list"),
        (b"null", ": expected an object in braces, found NoneType"),
        (b'{"a": {"b": 1, "b": 2}}', " cannot be read: the key 'b' is there twice"),
        (b'{"a": ' + b"1" * 5000 + b"}", " cannot be read: Exceeds the limit"),
        (b"[" * 100_000, " cannot be read: maximum recursion depth exceeded"),
        (b"\x00", ": line 1: this is not JSON"),
        (b"{}\xff", ": line 1: the byte 0xFF is not UTF-8"),
        (b"\xef\xbb\xbf{}", ": line 1: this is not JSON"),
    ],
)
def test_damaged_file_is_refused_in_one_line(tmp_path, content, problem):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}{problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"a":', b"\0" * 9, b"[]"])
def test_cut_json_is_none(tmp_path, content):
    write_synced(tmp_path / "a.json", {"a": 1})
    assert read_saved(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.json").write_bytes(content)
    assert read_saved(tmp_path / "a.json") is None


def test_folder_that_cannot_be_synced_is_written_all_the_same(tmp_path, monkeypatch):
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "a file system of a network")

    monkeypatch.setattr(os, "fsync", fsync)
    write_synced(tmp_path / "a.json", {"a": 1})
    assert read_saved(tmp_path / "a.json") == {"a": 1}
