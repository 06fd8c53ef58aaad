"""The evaluation commands refuse wrong input with one line."""

import pytest
from rerank_eval.commands import eval_trec_dl


def test_unreadable_file_ends_with_one_line(monkeypatch, capsys, tmp_path):
    missing = str(tmp_path / "missing")
    arguments = ["--requests", missing, "--qrels", missing, "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["eval-trec-dl", *arguments])
    with pytest.raises(SystemExit) as exit_:
        eval_trec_dl()
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "cannot be read" in error
    assert not (tmp_path / "out").exists()
