"""Lines of files: compression, byte order marks, line ends, and errors that name file and line."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers import rows
from rerank.readers.rows import STDIN, json_rows, parsed_lines


def read(path: Path) -> list[tuple[int, str]]:
    return list(parsed_lines(path, str))


def write(folder: Path, content: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("content", [b"a\nb", b"a\r\nb\r\n", b"\xef\xbb\xbfa\nb\n"])
def test_byte_order_mark_and_line_ends_do_not_count(tmp_path, content):
    assert read(write(tmp_path, content)) == [(1, "a"), (2, "b")]


def test_gzip_is_recognised_by_its_content(tmp_path):
    """Also of several members, as `cat a.gz b.gz` writes it."""
    assert read(write(tmp_path, gzip.compress(b"\xef\xbb\xbfa\n") + gzip.compress(b"b\n"))) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_standard_input_is_read(monkeypatch, compress):
    piped = io.BufferedReader(io.BytesIO(compress(b"a\n\nb\n")))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
    assert read(STDIN) == [(1, "a"), (3, "b")]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\r"])
def test_only_line_feeds_end_a_line(tmp_path, separator):
    assert read(write(tmp_path, f"a{separator}b\n".encode())) == [(1, f"a{separator}b")]


@pytest.mark.parametrize("content", ["ö".encode("latin-1"), "a".encode("utf-16")])
def test_other_encodings_are_refused_with_the_line(tmp_path, content):
    with pytest.raises(CollectionError, match=r"rows\.jsonl:2 is not UTF-8 .*; convert the file to UTF-8"):
        read(write(tmp_path, b"a\n" + content))


def test_damaged_gzip_is_refused(tmp_path):
    whole = gzip.compress(b"a line\n" * 1000)
    for damaged in (whole[:-9], whole[:20], whole[:12] + b"\xff\xff\xff" + whole[15:]):
        with pytest.raises(CollectionError, match=r"rows\.jsonl cannot be read: "):
            read(write(tmp_path, damaged))


def test_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_MAX_LINE_BYTES", 3 << 20)
    path = write(tmp_path, gzip.compress(bytes(5 << 20)))
    with pytest.raises(CollectionError, match=r"rows\.jsonl:1 is longer than 3 MiB; end each row with a line feed"):
        read(path)


@pytest.mark.parametrize("read", [read, lambda path: list(json_rows(path, dict))])
@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" \t \n"])
def test_blank_lines_without_end_are_refused(tmp_path, monkeypatch, line, read):
    """A file of 300 MB of line ends took minutes."""
    monkeypatch.setattr(rows, "_MAX_BLANK_LINES", 9)
    part = b"{}\n" + 9 * line
    assert len(read(write(tmp_path, 3 * part))) == 3
    with pytest.raises(CollectionError, match=r"rows\.jsonl:21 is blank like the 9 lines before it; leave blank"):
        read(write(tmp_path, 2 * part + line))


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": "]"}\n\n{"a": [{}]}\n',
        b'[{"a": "]"},\n\n{"a": [{}]}]',
        b'\xef\xbb\xbf\n[ {"a": "]"}\r\n,{"a": [{}]}\n]\n\n',
        gzip.compress(b'[{"a": "]"}, \n\n{"a": [{}]}]', mtime=0),
    ],
)
def test_objects_stand_on_lines_or_in_an_array(tmp_path, content):
    (_, first), (line, second) = json_rows(write(tmp_path, content), dict)
    assert (first, second, line) == ({"a": "]"}, {"a": [{}]}, 3)


@pytest.mark.parametrize("content", [b"", b"[]", b"\n[ \n ]\n"])
def test_array_may_be_empty(tmp_path, content):
    assert list(json_rows(write(tmp_path, content), dict)) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[{},\n7]", ":2 is 7, which is not an object"),
        (b"[{},\n{]", ":2 is not JSON"),
        (b"[{}\n{}]", ":2 is not JSON: the array goes on without a comma"),
        (b"[{},\n]", ":2 is not JSON"),
        (b"[{}\n", ":2 is not JSON: .*has no end"),
        (b"[", ":1 is not JSON"),
        (b"[{}][{}]", " goes on after its JSON array"),
        (b"[\xff]", ":1 is not UTF-8"),
        (b"[" * 100_000, ":1 is not JSON"),
    ],
)
def test_wrong_array_is_refused_with_the_line(tmp_path, content, problem):
    with pytest.raises(CollectionError, match=rf"rows\.jsonl{problem}"):
        list(json_rows(write(tmp_path, content), dict))


def test_array_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_MAX_ARRAY_BYTES", 4)
    with pytest.raises(CollectionError, match="is a JSON array of more than 0 GiB; write one object per line"):
        list(json_rows(write(tmp_path, b"[{},{}]"), dict))


def test_pointer_of_git_lfs_is_named(tmp_path):
    with pytest.raises(CollectionError, match=r"rows\.jsonl is a pointer of Git LFS.*git lfs pull"):
        read(write(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"))
