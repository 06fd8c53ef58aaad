"""Query likelihood: scores equal a slow loop over the logits of a model that reads one prompt at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.config import IdentityModel, QueryLikelihoodModel, ServiceConfig
from rerank.errors import ConfigError
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.rankers import query_likelihood
from rerank.rankers.base import rank_windows
from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from rerank.reranking.blocking import Reranker
from rerank.types import Passage, Query, RankOptions, ScoreKind, StrategyKind, Window
from tests.causal_lms import CONFIGS, write_causal_lm
from tests.small_tokenizers import byte_level, metaspace

TEMPLATE = """
system_message: You write queries.
prefix: "Passage: "
body: "{candidate}"
suffix: " Write the query."
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm"), "llama", byte_level())


@pytest.fixture(scope="module")
def ranker(checkpoint: Path) -> QueryLikelihoodRanker:
    return QueryLikelihoodRanker(checkpoint, device="cpu")


def make_window(n: int, query: str = "which passage") -> Window:
    texts = [" ".join(f"w{(7 * place + word) % 11}" for word in range(1 + place % 9)) for place in range(n)]
    return Window(Query(query), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts)))


def slow_scores(checkpoint: Path, window: Window, template: str) -> list[float]:
    """For each passage, the mean log-probability of the query's tokens, from the logits at all positions."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    renderer = ListwiseRenderer(load_template(template), tokenizer, 4096, 0)
    space = "" if renderer.prompt_end[-1:].isspace() else " "
    scores = []
    for passage in window.passages:
        prompt = renderer.tokenize(renderer.render(window.query, ["1"], [passage.text]))
        query = tokenizer(space + window.query.text, add_special_tokens=False)["input_ids"]
        log_probs = torch.log_softmax(model(torch.tensor([[*prompt, *query]])).logits[0].double(), dim=1)
        each = [log_probs[len(prompt) + place - 1, token].item() for place, token in enumerate(query)]
        scores.append(sum(each) / len(each))
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_scores_equal_a_slow_loop(tmp_path: Path, architecture: str, chat: bool) -> None:
    tokenizer = byte_level() if architecture == "qwen2" else metaspace("instruct") if chat else metaspace()
    folder = write_causal_lm(tmp_path / "lm", architecture, tokenizer)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    template = str(tmp_path / "template.yaml") if chat else "query_likelihood"
    windows = [make_window(n) for n in (12, 1, 3)]
    rankings = rank_windows(QueryLikelihoodRanker(folder, template, device="cpu"), windows)
    for window, ranking in zip(windows, rankings, strict=True):
        assert ranking.scores == pytest.approx(slow_scores(folder, window, template), abs=1e-4)
    assert max(rankings[0].scores) - min(rankings[0].scores) > 1e-2


def test_score_depends_on_no_other_passage(ranker: QueryLikelihoodRanker) -> None:
    window = make_window(9)
    (together,) = rank_windows(ranker, [window])
    alone = rank_windows(ranker, [Window(window.query, (passage,)) for passage in window.passages])
    assert together.scores == pytest.approx([score for ranking in alone for score in ranking.scores], abs=1e-5)


def test_prompts_are_read_in_rows_of_bounded_length(
    ranker: QueryLikelihoodRanker, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = make_window(30)
    (at_once,) = rank_windows(ranker, [window])
    encoded = ranker.encode(window)
    monkeypatch.setattr(query_likelihood, "_ROW_TOKENS", 40)
    rows = [row for _, row in query_likelihood._rows(ranker._sequences([encoded]))]
    assert len(rows) > 3
    assert [prompt for row in rows for prompt in row] == [prompt[:-1] for prompt in encoded.prompts]
    assert all(sum(map(len, row)) <= 40 or len(row) == 1 for row in rows)
    assert rank_windows(ranker, [window])[0].scores == pytest.approx(at_once.scores, abs=1e-5)


def test_long_passage_is_cut_and_reported(checkpoint: Path) -> None:
    ranker = QueryLikelihoodRanker(checkpoint, device="cpu", passage_tokens=8)
    window = Window(Query("q"), (Passage("short", "w1"), Passage("long", "w1 " * 500)))
    encoded = ranker.encode(Window(window.query, ranker.prepare(window.query, window.passages).passages))
    assert encoded.truncated == (1,)
    assert encoded.tokens == sum(len(prompt) - 1 for prompt in encoded.prompts) < 80


def test_query_of_one_token_is_scored(ranker: QueryLikelihoodRanker) -> None:
    (ranking,) = rank_windows(ranker, [make_window(4, "w")])
    assert all(score < 0 for score in ranking.scores)


def test_no_passages_give_no_scores(ranker: QueryLikelihoodRanker) -> None:
    assert rank_windows(ranker, [Window(Query("q"), ())])[0].scores == ()


def test_served_model_gives_its_scores_interpolates_them_and_is_a_stage_of_a_cascade(
    checkpoint: Path, ranker: QueryLikelihoodRanker
) -> None:
    likelihood = QueryLikelihoodModel(name="likelihood", ranker="query-likelihood", path=checkpoint)
    cascade = likelihood.model_copy(
        update={"name": "cascade", "strategy": StrategyKind.CASCADE, "preranker": "keep", "window_size": 3}
    )
    keep = IdentityModel(name="keep", ranker="identity")
    window = make_window(7)
    (expected,) = rank_windows(ranker, [window])
    documents = [(passage.doc_id, passage.text) for passage in window.passages]
    with Reranker(ServiceConfig(models=(likelihood, cascade, keep))) as reranker:
        ranking = reranker.rerank(window.query, documents)
        mixed = reranker.rerank(window.query, documents, RankOptions(interpolation=0.5))
        of_cascade = reranker.rerank(window.query, documents, RankOptions(model="cascade"))
    by_id = dict(zip((passage.doc_id for passage in window.passages), expected.scores, strict=True))
    assert ranking.score_kind is ScoreKind.QUERY_LOG_LIKELIHOOD
    assert [each.score for each in ranking.ranked] == pytest.approx(sorted(expected.scores, reverse=True), abs=1e-5)
    assert mixed.score_kind is ScoreKind.INTERPOLATED
    best = sorted(("d0", "d1", "d2"), key=lambda doc_id: -by_id[doc_id])
    assert [each.candidate.passage.doc_id for each in of_cascade.ranked] == [*best, "d3", "d4", "d5", "d6"]


def test_template_that_shows_the_query_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text('prefix: "{query}"\nbody: "{candidate}"\nsuffix: ""\n')
    with pytest.raises(ConfigError, match=r"has \{query\}, which the model is to predict"):
        QueryLikelihoodRanker(checkpoint, str(tmp_path / "t.yaml"), device="cpu")


def test_description_says_what_scores_mean(ranker: QueryLikelihoodRanker) -> None:
    assert (ranker.info.kind, ranker.info.score_kind) == ("query-likelihood", ScoreKind.QUERY_LOG_LIKELIHOOD)
    assert ranker.info.max_window_size == 1000
    assert ranker.info.batching == "packed"
