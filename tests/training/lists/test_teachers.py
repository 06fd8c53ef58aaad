"""Teachers compared with their formulas."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rerank_training.lists.sampling import Pool, make_pool
from rerank_training.lists.teachers import by_fusion, by_grades, by_reranker

from rerank.config import IdentityModel, PERankModel, ServiceConfig
from rerank.reranking.blocking import Reranker
from rerank.types import Passage, Query, RankOptions

COSINES = {"a": 0.1, "b": 0.5, "c": 0.9}
BM25 = {"a": 12.0, "b": 9.0, "c": 3.0}


def passage(doc_id: str, cosine: float) -> Passage:
    return Passage(doc_id, f"text of {doc_id}", vector=np.array([cosine, (1 - cosine**2) ** 0.5], dtype=np.float32))


def pool(grades: dict[str, float] | None = None) -> Pool:
    query = Query("q?", vector=np.array([1.0, 0.0], dtype=np.float32))
    return make_pool(query, [replace(passage(d, COSINES[d]), score=BM25[d]) for d in "abc"], grades or {})


def passages(pool: Pool) -> list[Passage]:
    return list(pool.candidates)


def z(values: Sequence[float]) -> np.ndarray:
    return (np.array(values) - np.mean(values)) / np.std(values)


def test_grades_default_to_0():
    created = pool({"b": 3.0})
    assert by_grades(created, [*passages(created), Passage("other", "x")]) == (0.0, 3.0, 0.0, 0.0)


def test_fusion_is_the_weighted_sum_of_z_scores_over_the_pool():
    created = pool()
    expected = z(list(COSINES.values())) + 0.3 * z(list(BM25.values()))
    assert by_fusion(created, passages(created)[1:]) == pytest.approx(tuple(expected[1:]), abs=1e-6)


def test_fusion_gives_a_passage_outside_the_pool_the_lowest_bm25():
    created = pool()
    expected = z([*COSINES.values(), 0.7]) + 0.3 * np.append(z(list(BM25.values())), min(z(list(BM25.values()))))
    assert by_fusion(created, [passage("other", 0.7)]) == pytest.approx((expected[3],))


@pytest.fixture(scope="module")
def reranker(checkpoint: Path) -> Iterator[Reranker]:
    cosine = PERankModel(name="cosine", ranker="pe-rank", path=checkpoint)
    identity = IdentityModel(name="identity", ranker="identity")
    with Reranker(ServiceConfig(device="cpu", models=(cosine, identity))) as opened:
        yield opened


def test_reranker_gives_n_minus_rank(reranker):
    created = pool()
    assert by_reranker(created, passages(created), reranker, "identity") == (3.0, 2.0, 1.0)


def test_scores_of_a_reranker_are_those_of_its_reply_in_the_order_of_the_list(reranker):
    created = pool()
    found = by_reranker(created, passages(created), reranker, reads_scores=True)
    sources = [Passage(row.doc_id, row.text) for row in passages(created)]
    options = RankOptions(first_stage_weight=0.0)
    expected = {item.position: item.score for item in reranker.rerank(created.query.text, sources, options).ranked}
    assert found == pytest.approx([expected[place] for place in range(len(sources))])


def test_reranker_reads_the_texts_and_not_the_vectors_of_the_lists(reranker, encoder):
    texts = ["Deserts are dry.", "A flea lives a year.", "Fleas are small insects.", "A violin has four strings."]
    found = [Passage(str(number), text) for number, text in enumerate(texts)]
    created = make_pool(Query("how long does a flea live", vector=np.zeros(3, dtype=np.float32)), found, {})
    cosines = encoder.encode_passages(texts) @ encoder.encode_queries([created.query.text])[0]
    assert np.argsort(by_reranker(created, passages(created), reranker)).tolist() == np.argsort(cosines).tolist()
