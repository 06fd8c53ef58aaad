"""The default orders a list alike: found by a search, sent as texts, or sent as references to the index."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rerank.collections import open_collection
from rerank.config import FusionModel, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Passage, Query, Ranking, RankOptions
from tests.conftest import PASSAGES
from tests.eval.data import write

ANIMALS = ("flea", "cat", "dog", "whale", "horse", "beetle", "hen", "toad")
FACTS = (
    "lives for {} years at most",
    "sleeps {} hours a day",
    "swims {} miles against the tide",
    "has {} young in its life cycle",
    "jumps {} inches high",
    "eats {} ounces of food a day",
)
#: More than the default reads of a list without vectors.
TEXTS = {f"{place}-{fact}": f"A {animal} {FACTS[fact].format(3 * place + fact + 2)}." for place, animal in
         enumerate(ANIMALS) for fact in range(len(FACTS))}  # fmt: skip
DEPTH = len(PASSAGES) + len(TEXTS)


@pytest.fixture(scope="module", autouse=True)
def float32() -> Iterator[None]:
    """Computes in float32 on each processor: in bfloat16, a vector depends on the batch of its text."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("encoder", "sparse_encoder"):
            patch.setattr(f"rerank.models.{module}.pick_encoder_dtype", lambda *_: "float32")
        yield


@pytest.fixture(scope="module")
def long_index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("sixty") / "collection"
    rows = [{"_id": doc_id, "title": title, "text": text} for doc_id, (title, text) in PASSAGES.items()]
    write(folder / "corpus.jsonl", *rows, *({"_id": doc_id, "text": text} for doc_id, text in TEXTS.items()))
    build_index(open_collection(str(folder)), Path(folder.parent / "index"), encoder)
    return Index(folder.parent / "index", encoder)


@pytest.fixture
async def reranker(encoder: Encoder, sparse_encoder: SparseEncoder, long_index: Index) -> AsyncIterator[AsyncReranker]:
    fusions = (FusionModel(name="default", ranker="fusion"), FusionModel(name="whole", ranker="fusion", cosine_depth=0))
    config = ServiceConfig(models=(*fusions, {"name": "identity", "ranker": "identity"}))
    rankers = {fusion.name: FusionRanker(fusion, encoder, sparse_encoder) for fusion in fusions}
    registry = ModelRegistry(config.models, {**rankers, "identity": IdentityRanker()})
    async with AsyncReranker(config, encoder, long_index, registry) as made:
        yield made


def scores(ranking: Ranking) -> dict[str, float]:
    return {item.passage.doc_id: item.score for item in ranking.ranked}


@pytest.mark.parametrize("first_stage", FirstStage)
@pytest.mark.parametrize("query", ["how long does a flea live", "what causes high water", "searching text"])
async def test_search_texts_and_references_give_the_same_scores(reranker, long_index, first_stage, query):
    """Before, a hybrid search counted by BM25 scores that no client sees, and each first stage had a weight.

    Of texts, the default reads 30 vectors. The model that reads all of them gives texts the scores of the search, if
    the query says how rare its words are in the index.
    """
    found = (await reranker.search(query, first_stage, DEPTH, RankOptions(model="identity"))).ranking
    texts = [Passage(item.passage.doc_id, item.passage.text, item.passage.score) for item in found.ranked]
    assert len(texts) == DEPTH or first_stage is FirstStage.BM25
    references = [replace(text, text="", in_index=True) for text in texts]
    asked = Query(query)
    knowing = long_index.with_word_table(asked)
    for model, by, candidates in (
        ("whole", knowing, texts),
        ("whole", asked, references),
        ("default", asked, references),
    ):
        searched = (await reranker.search(query, first_stage, DEPTH, RankOptions(model=model))).ranking
        sent = await reranker.rerank(by, candidates, RankOptions(model=model))
        assert scores(sent) == pytest.approx(scores(searched), abs=0.002)
        assert sent.trace.first_stage_weight == pytest.approx(searched.trace.first_stage_weight, abs=0.02)


async def test_index_tells_how_rare_words_are_once_and_where_all_candidates_are_references(reranker, monkeypatch):
    asked, know = list[str](), Index.with_word_table
    monkeypatch.setattr(Index, "with_word_table", lambda index, query: asked.append(query.text) or know(index, query))
    text, reference = Passage("text", "Fleas jump."), Passage("0-1", in_index=True)
    for query, candidates in (("none", [text]), ("some", [text, reference]), ("all", [reference])):
        await reranker.rerank(query, candidates, RankOptions())
    await reranker.search("search", FirstStage.BM25, 9, RankOptions())
    assert asked == ["all", "search"]


@pytest.mark.parametrize("first_stage", FirstStage)
async def test_vectors_of_the_index_change_no_other_signal(reranker, first_stage):
    """Texts get 30 cosines, all passages of a search have one; most of the first passages are the same."""
    query = "how long does a flea live"
    searched = (await reranker.search(query, first_stage, DEPTH, RankOptions())).ranking
    found = (await reranker.search(query, first_stage, DEPTH, RankOptions(model="identity"))).ranking
    texts = [Passage(item.passage.doc_id, item.passage.text, item.passage.score) for item in found.ranked]
    sent = await reranker.rerank(query, texts, RankOptions())
    assert sent.trace.cosines == min(30, len(texts))
    assert searched.trace.cosines == len(texts)
    first, others = ({item.passage.doc_id for item in ranking.ranked[:10]} for ranking in (searched, sent))
    assert len(first & others) >= 8
