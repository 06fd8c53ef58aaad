"""Run files as trec_eval reads them: its order of the documents is the one that was measured."""

import math
import random
from pathlib import Path

import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from rerank_eval.runs import trec_run

from rerank.types import ScoredDoc


def ulps_below(start: float, n: int) -> list[float]:
    """n scores, each one float64 below the one before it: all equal in float32."""
    scores = [start]
    while len(scores) < n:
        scores.append(math.nextafter(scores[-1], -math.inf))
    return scores


@st.composite
def descending_scores(draw: st.DrawFn) -> list[float]:
    """Up to 1,000 scores of magnitudes up to 1e6: ties, differences of float64's last digit, and anything."""
    n, magnitude = draw(st.integers(1, 1000)), draw(st.sampled_from([1e-6, 1.0, 16_777.0, 1e6]))
    kind = draw(st.sampled_from(["equal", "ulps", "clusters", "any"]))
    draw_number = random.Random(draw(st.integers(0, 2**32)))
    start = draw_number.uniform(-magnitude, magnitude)
    if kind == "equal":
        return [start] * n
    if kind == "ulps":
        return ulps_below(start, n)
    if kind == "clusters":
        centres = sorted((draw_number.uniform(-magnitude, magnitude) for _ in range(1 + n // 7)), reverse=True)
        return [score for centre in centres for score in ulps_below(centre, 7)][:n]
    return sorted((draw_number.uniform(-magnitude, magnitude) for _ in range(n)), reverse=True)


def reciprocal_ranks(path: Path, relevant: list[str]) -> list[float]:
    """What trec_eval gives for one query per document, all with the same ranking."""
    with path.open(encoding="utf-8") as file:
        run = pytrec_eval.parse_run(file)
    qrels = {f"q{number}": {doc_id: 1} for number, doc_id in enumerate(relevant)}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"})
    measured = evaluator.evaluate(dict.fromkeys(qrels, run["q"]))
    return [measured[f"q{number}"]["recip_rank"] for number in range(len(relevant))]


@settings(max_examples=60, deadline=None)
@given(scores=descending_scores(), seed=st.integers(0, 2**32))
def test_trec_eval_finds_every_document_at_the_rank_that_was_written(scores, seed, tmp_path_factory):
    draw = random.Random(seed)
    doc_ids = [f"d{number}" for number in draw.sample(range(10_000), len(scores))]
    path = tmp_path_factory.mktemp("run") / "run.trec"
    path.write_text(trec_run({"q": [ScoredDoc(*row) for row in zip(doc_ids, scores, strict=True)]}, "t"))
    ranks = sorted({1, len(scores), *(draw.randint(1, len(scores)) for _ in range(20))})
    found = reciprocal_ranks(path, [doc_ids[rank - 1] for rank in ranks])
    assert found == pytest.approx([1 / rank for rank in ranks], rel=1e-6)
