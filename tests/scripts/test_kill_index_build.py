"""Killing of index builds: the index is finished in spite of the kills, and their cost is printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank.retrieval.index import verify_index
from scripts.kill_index_build import _progress, main


@pytest.mark.slow
def test_killed_build_is_finished(beir_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "index"
    main(["--collection", str(beir_folder), "--out", str(out), "--device", "cpu"], within_s=1.0, kills=2)
    assert verify_index(out).passages == 12
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "progress was saved" in line] == ["killed", "killed"]
    assert lines[-1].startswith("2 kills: ")


def test_every_saved_part_is_progress(tmp_path: Path) -> None:
    states = [_progress(tmp_path)]
    (tmp_path / "index").mkdir()
    (tmp_path / "stages.json").write_text("{}", encoding="utf-8")
    states.append(_progress(tmp_path))
    for shards in ([0.0, 0.0], [0.0, 1.5], [2.0, 1.5]):
        np.array(shards).tofile(tmp_path / "shards")
        states.append(_progress(tmp_path))
    (tmp_path / "index" / "hnsw.faiss").touch()
    states.append(_progress(tmp_path))
    assert len(set(states)) == len(states) - 1  # shards of which none is encoded are no progress
