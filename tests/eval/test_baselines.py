"""Each baseline gives the scores that its name promises."""

from __future__ import annotations

import numpy as np
import pytest
from rerank_eval.baselines import Cosine, Oracle, ZScoreFusion
from rerank_eval.systems import Baseline

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.types import CandidateSource, Query

QUERY = Query("how long does a flea live", "q")
TEXTS = ["A flea lives a year.", "Deserts are dry.", "Cats have fleas.", "Deserts are dry."]
CANDIDATES = [CandidateSource(f"d{place}", text, score=10.0 - place) for place, text in enumerate(TEXTS)]


def test_cosine_equals_the_encoder(encoder: Encoder) -> None:
    expected = encoder.encode(TEXTS) @ encoder.encode([QUERY.text])[0]
    assert Cosine(encoder)(QUERY, CANDIDATES) == pytest.approx(expected.tolist(), abs=1e-5)


def test_z_score_adds_three_tenths_of_the_first_stage(encoder: Encoder) -> None:
    cosine = Cosine(encoder)
    first, second = np.array([10.0, 9.0, 8.0, 7.0]), np.array(cosine(QUERY, CANDIDATES))
    expected = 0.3 * (first - first.mean()) / first.std() + (second - second.mean()) / second.std()
    assert ZScoreFusion(cosine)(QUERY, CANDIDATES) == pytest.approx(expected.tolist())


def test_z_score_without_first_stage_scores_is_refused(encoder: Encoder) -> None:
    with pytest.raises(ConfigError, match="needs a first-stage score"):
        ZScoreFusion(Cosine(encoder))(QUERY, [CandidateSource("d", "text")])


def test_oracle_sorts_by_judgements_and_keeps_the_order_of_ties() -> None:
    qrels = [Qrel("q", "d3", 3), Qrel("q", "d1", 1), Qrel("q", "d0", -1), Qrel("other", "d2", 3)]
    ranking = Baseline(Oracle(qrels)).rerank(QUERY, CANDIDATES)
    assert ranking.doc_ids == ("d3", "d1", "d0", "d2")
    assert ranking.scores == (4.0, 3.0, 2.0, 1.0)
    assert Oracle(qrels).revision != Oracle(qrels[:2]).revision


def test_no_candidates_give_an_empty_ranking(encoder: Encoder) -> None:
    for scorer in (Cosine(encoder), Oracle([])):
        assert Baseline(scorer).rerank(QUERY, []).doc_ids == ()
