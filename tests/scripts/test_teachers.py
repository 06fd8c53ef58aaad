"""The table of teachers has a row for each teacher, and goes on with the likelihoods that it kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from scripts.reproduce.teachers import main
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level


def test_table_has_all_teachers_and_reads_no_passage_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["Deserts are dry.", "A flea lives a year.", "Fleas are insects.", "The moon is far."]
    candidates = [{"docid": f"d{n}", "score": 9 - n, "doc": text} for n, text in enumerate(texts)]
    row = {"query": {"qid": "7", "text": "how long does a flea live"}, "candidates": candidates}
    (tmp_path / "requests.jsonl").write_text(json.dumps(row))
    (tmp_path / "qrels.txt").write_text("7 0 d1 3\n7 0 d2 1\n8 0 d1 1\n")
    lm = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    models = [f"{{name: {name}, ranker: query-likelihood, path: {lm}}}" for name in ("one", "other")]
    (tmp_path / "wordings.yaml").write_text(f"models: [{', '.join(models)}]")
    files = {"requests": "requests.jsonl", "qrels": "qrels.txt", "config": "wordings.yaml", "kept": "kept"}
    command = [part for flag, name in files.items() for part in (f"--{flag}", str(tmp_path / name))]
    app = Typer()
    app.command()(main)
    first = CliRunner().invoke(app, [*command, "--weights", "0.5"])
    monkeypatch.setattr(QueryLikelihoodRanker, "rank", None)
    again = CliRunner().invoke(app, [*command, "--weights", "0.5"])
    tables = [re.findall(r"^\| (.*) \| ([01]\.\d{4}) \|$", result.output, re.MULTILINE) for result in (first, again)]
    assert tables[0] == tables[1], again.output
    assert [name for name, _ in tables[0][:4]] == ["cosine", "cosine + .3 first stage", "one", "other"]
    assert [name for name, _ in tables[0][-2:]] == [
        "cosine + 0.5 mean of wordings",
        "cosine + .3 first stage + 0.5 mean of wordings",
    ]
    assert float(dict(tables[0])["cosine"]) == 1.0
