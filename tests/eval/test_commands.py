"""The evaluation commands from start to end, and how they refuse wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rerank_eval import beir, trec_dl


def run_command(monkeypatch: pytest.MonkeyPatch, main: Callable[[], None], *arguments: object) -> int | str | None:
    """Runs the console command in this process; returns its exit code."""
    monkeypatch.setattr("sys.argv", ["command", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


@pytest.mark.slow
def test_eval_beir_measures_the_search_of_a_service_that_it_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beir_folder: Path,
    index_folder: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").symlink_to(beir_folder / "corpus.jsonl")
    (tmp_path / "qrels" / "test.tsv").write_text("q\td\ts\n1\tmoon\t1\n1\ttides\t1\n", encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "the pull of the moon and tides"}\n', encoding="utf-8"
    )
    out = tmp_path / "out"
    code = run_command(monkeypatch, beir.main, "--collection", tmp_path, "--index", index_folder, "--out", out)
    assert code == 0
    measures = json.loads((out / "measures.json").read_text(encoding="utf-8"))
    assert measures["mean"]["nDCG@10"] == 1.0
    assert measures["settings"]["ranker"] == "pe-rank"
    assert len((out / "run.trec").read_text(encoding="utf-8").splitlines()) == 12
    assert {path.name for path in out.iterdir()} >= {"report.md", "report.html", "summary.json", "latency.png"}
    assert "nDCG@10" in capsys.readouterr().out


def test_unreadable_file_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    arguments = ("--requests", missing, "--qrels", missing, "--out", tmp_path / "out")
    assert run_command(monkeypatch, trec_dl.main, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "cannot be read" in error
    assert not (tmp_path / "out").exists()


def test_missing_source_of_candidates_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], beir_folder: Path, tmp_path: Path
) -> None:
    arguments = ("--collection", beir_folder, "--ranker", "oracle", "--out", tmp_path / "out")
    assert run_command(monkeypatch, beir.main, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no source of candidates: give --index DIR, --run FILE or --prebuilt NAME")
