"""Result files: run.trec keeps the order that was measured."""

from __future__ import annotations

import json
from pathlib import Path

from rerank_eval.measures import MetricValues
from rerank_eval.run_files import write_run

from rerank.types import ScoredDoc


def test_white_space_in_ids_is_percent_encoded_with_a_note(tmp_path: Path) -> None:
    run = {"q 1": [ScoredDoc("my\u00a0file.pdf", 1.0), ScoredDoc("a%20b", 0.5)]}
    write_run(tmp_path, run, MetricValues({}, {}), {})
    assert (tmp_path / "run.trec").read_text(encoding="utf-8") == (
        "q%201 Q0 my%C2%A0file.pdf 1 1.0 rerank\nq%201 Q0 a%20b 2 0.5 rerank\n"
    )
    (note,) = json.loads((tmp_path / "measures.json").read_text(encoding="utf-8"))["notes"]
    assert note == "white space in ids is percent-encoded in run.trec, whose columns it separates: q%201"
