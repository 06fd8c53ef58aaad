"""JSON files of this package: damaged and edited ones are refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import ConfigError
from rerank.util.json_files import read_json


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
def test_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}{problem}")
    assert "\n" not in str(caught.value)
