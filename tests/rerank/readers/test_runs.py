"""TREC runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

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
