"""The study of first stages: gains query by query, the table, the plot, and the script that runs the evaluations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rerank.errors import CollectionError
from scripts.first_stages import draw, gains, main, read_values, table

SCRIPT = Path(__file__).parents[2] / "scripts" / "first_stages.sh"
#: Four queries: a weak first stage that both systems improve, and a strong one that the second makes worse.
VALUES = {
    "strong": {"identity": [0.7, 0.8, 0.9, 0.8], "a": [0.7, 0.9, 0.9, 0.8], "b": [0.6, 0.6, 0.8, 0.7]},
    "weak": {"identity": [0.1, 0.2, 0.3, 0.4], "a": [0.3, 0.5, 0.4, 0.6], "b": [0.2, 0.3, 0.4, 0.5]},
}


def write_evaluation(folder: Path, values: Mapping[str, list[float]]) -> Path:
    row = {"mean": 0.5, "half_width": None, "p": None, "queries_per_s": None}
    summary = {"dataset": "d", "title": "t", "queries": 4, "rows": dict.fromkeys(values, row)}
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    for system, of_queries in values.items():
        (folder / system).mkdir()
        per_query = {f"q{place}": {"nDCG@10": value} for place, value in enumerate(of_queries)}
        (folder / system / "measures.json").write_text(json.dumps({"per_query": per_query}), encoding="utf-8")
    return folder


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=os.environ | {"PYTHON": sys.executable}
    )


def test_gain_is_paired_and_the_worst_first_stage_comes_first() -> None:
    found = {(gain.first_stage, gain.system): gain for gain in gains(VALUES)}
    assert list(found) == [("weak", "a"), ("weak", "b"), ("strong", "a"), ("strong", "b")]
    weak = found["weak", "a"]
    assert (weak.before, weak.after) == pytest.approx((0.25, 0.45))
    assert weak.comparison.difference == pytest.approx(0.2)
    assert (weak.comparison.wins, weak.comparison.losses) == (4, 0)
    assert found["strong", "b"].comparison.difference == pytest.approx(-0.125)


def test_p_is_adjusted_over_all_systems_and_first_stages() -> None:
    found = gains(VALUES)
    raw = sorted(gain.comparison.t_p for gain in found)
    assert sorted(gain.p for gain in found)[0] == pytest.approx(raw[0] * 4)
    assert all(gain.p >= gain.comparison.t_p for gain in found)


def test_table_has_a_row_per_first_stage() -> None:
    lines = table(gains(VALUES)).splitlines()
    assert lines[0] == "| first stage | nDCG@10 | a | gain, 95 % | p | b | gain, 95 % | p |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| weak", "| strong"]
    assert "| 0.2500 | 0.4500 | +0.2000 (" in lines[2]
    assert "-0.1250 (" in lines[3]


def test_system_that_a_first_stage_lacks_has_dashes() -> None:
    fewer = VALUES | {"weak": {"identity": [0.1, 0.2], "a": [0.3, 0.5]}}
    assert table(gains(fewer)).splitlines()[2].endswith("| – | – | – |")


def test_first_stage_without_another_system_is_refused() -> None:
    with pytest.raises(CollectionError, match="weak has one system; evaluate --ranker identity and another one"):
        gains({"weak": {"identity": [0.1]}})


def test_plot_is_the_same_file_every_time_and_names_all(tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        draw(gains(VALUES), tmp_path / name)
    drawn = (tmp_path / "first.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "second.svg").read_text(encoding="utf-8")
    assert all(f">{word}<" in drawn for word in ("weak", "strong", "a", "b"))


def test_results_of_evaluations_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {name: write_evaluation(tmp_path / name, values) for name, values in VALUES.items()}
    assert {name: read_values(folder) for name, folder in folders.items()} == VALUES
    main([f"{name}={folder}" for name, folder in folders.items()], tmp_path / "plot.png")
    assert capsys.readouterr().out == table(gains(VALUES)) + "\n"
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_evaluation_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "weak", VALUES["weak"])
    (folder / "b" / "measures.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CollectionError, match=r"weak/b/measures\.json cannot be read .*; run its evaluation again"):
        read_values(folder)
    with pytest.raises(CollectionError, match="'weak': expected NAME=FOLDER"):
        main(["weak"], tmp_path / "plot.svg")


def test_wrong_calls_end_with_the_usage(tmp_path: Path) -> None:
    assert "scripts/first_stages.sh DATA OUT [FLAG …]" in run_script().stderr
    done = run_script(tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert "trec-dl-2019/requests.jsonl does not exist; DATA needs it" in done.stderr


@pytest.mark.slow
def test_all_lists_are_evaluated(tmp_path: Path) -> None:
    """The service and the evaluations are real; the oracle stands for a reranker."""
    bm25, others = tmp_path / "trec-dl-2019", tmp_path / "trec-dl-2019-first-stages"
    for folder, name, order in ((bm25, "requests", "abcd"), (others, "dense", "dcba")):
        folder.mkdir()
        candidates = [{"docid": doc, "score": -place, "doc": {"contents": doc}} for place, doc in enumerate(order)]
        rows = [{"query": {"text": "q", "qid": query_id}, "candidates": candidates} for query_id in ("1", "2")]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (bm25 / "qrels.txt").write_text("1 0 d 1\n2 0 d 1\n", encoding="utf-8")
    done = run_script(tmp_path, tmp_path / "out", "--ranker", "oracle")
    assert done.returncode == 0, done.stderr
    assert [line.split(" | ")[:3] for line in done.stdout.splitlines()[2:]] == [
        ["| bm25", "0.4307", "1.0000"],
        ["| dense", "1.0000", "1.0000"],
    ]
    assert (tmp_path / "out" / "first-stages.svg").is_file()
