"""TREC runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers.runs import read_run


def write(folder: Path, content: bytes) -> Path:
    path = folder / "run.trec"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"1 Q0 a 1 2.5 t\n1 Q0 b 2 -1e-1 t\n",
        b"\xef\xbb\xbf1 Q0 a 1 2.5 t\r\n\r\n  1  Q0\tb 2 -.1 t",
        b"1\tQ0\ta\t1\t2.5\tmy tag\n1\tQ0\tb\t2\t-0.1\t\n",
        gzip.compress(b"\xef\xbb\xbf1 Q0 a 1 2.5 t\n1 Q0 b 2 -0.1 t\n", mtime=0),
    ],
)
def test_run_is_read_as_all_other_files(tmp_path: Path, content: bytes) -> None:
    assert read_run(write(tmp_path, content)) == {"1": {"a": 2.5, "b": -0.1}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"1 a 1.0", "has 3 columns; expected query_id, Q0, doc_id, rank, score and tag"),
        (b"1 Q0 a 1 high t", "has 'high' as score; give a finite number"),
        (b"1 Q0 a 1 nan t", "has 'nan' as score; give a finite number"),
        (b"1\tQ0\t\t1\t2\tt", "has the query_id '1' and the doc_id ''; give both"),
        (b"1 Q0 \xff 1 2 t", "is not UTF-8"),
        (b"1 Q0 a 9 0.5 t", "has the passage 'a' of query '1', which line 1 has; keep one"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    with pytest.raises(CollectionError, match=rf"run\.trec:3 {problem}"):
        read_run(write(tmp_path, b"1 Q0 a 1 9 t\n2 Q0 a 1 9 t\n" + line))
