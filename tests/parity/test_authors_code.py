"""What the authors' own code gives on random weights, and what this service gives: prompts, scores, orders, losses.

The folder of `--shared` has tiny checkpoints in the published layouts, lists, odd ones too, and what the code of FIRST,
PE-Rank, RankLLM and E2Rank made of them. RankLLM's prompts are in its package: pip install --no-deps rank-llm==0.25.7.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import FirstObjective
from rerank_training.first.training import load_base, make_collator, prompt_settings
from rerank_training.lists.training_list import read_lists
from rerank_training.trainer.losses import rank_loss_named
from transformers import AutoTokenizer

from rerank import Reranker, ServiceConfig
from rerank.config import E2RankModel, EncoderConfig, FirstModel, GenerationModel, ModelConfig, PERankModel
from rerank.rankers.base import Ranker
from rerank.types import Ranking, RankOptions, Window, WindowRanking
from tests.fakes import prepared_window

pytestmark = pytest.mark.shared

Cases = Mapping[str, tuple[str, list[str]]]
#: Lists in which each window of the authors holds what ours does: their last one may be narrower (docs/guide/move.md).
SAME_WINDOWS = ("20 plain", "40 > window", "long query", "unicode", "brackets")
#: Its texts hold special tokens, which reach RankLLM's models as such, and are divided here.
WITH_MARKUP = "markup in passages"
#: Profile of RankLLM's program → the checkpoint's folder, and the name in the files of results.
RANK_LLM = {
    "rank-zephyr": ("zephyr", "zephyr"),
    "first-zephyr": ("zephyr", "zephyr_alpha"),
    "first-mistral": ("first_mistral", "first_mistral"),
    "rank-vicuna": ("vicuna", "vicuna"),
}


@pytest.fixture(scope="module")
def _rank_llm() -> None:
    try:
        metadata.distribution("rank-llm")
    except metadata.PackageNotFoundError:
        pytest.skip("its prompts are in the package: pip install --no-deps rank-llm==0.25.7")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def cases(parity: Path, *groups: str) -> Cases:
    found = read(parity / "cases.json")
    return {name: (query, texts) for group in groups for name, (query, texts) in found[group].items()}


@contextmanager
def served(model: ModelConfig, encoder: EncoderConfig | None = None) -> Iterator[Reranker]:
    with Reranker(ServiceConfig(models=(model,), encoder=encoder or EncoderConfig())) as reranker:
        yield reranker


def encoded(ranker: Ranker, query: str, texts: Sequence[str]) -> Window:
    return ranker.encode(prepared_window(ranker, query, texts))


def ranked(ranker: Any, window: Window) -> WindowRanking:
    (ranking,) = ranker.score([window])
    return ranking


def order_of(ranking: Ranking) -> list[int]:
    return [item.position for item in ranking.ranked]


def best_first(letters: Sequence[float], n: int) -> list[int]:
    return torch.tensor(letters[:n]).argsort(descending=True, stable=True).tolist()


@pytest.mark.usefixtures("_rank_llm")
@pytest.mark.parametrize("profile", RANK_LLM)
@pytest.mark.parametrize("guards", [["markup"], []], ids=["guarded", "as-published"])
def test_prompts_of_rank_llm_are_equal_token_by_token(parity, profile, guards):
    folder, name = RANK_LLM[profile]
    settings: dict[str, Any] = {"name": "it", "path": parity / "fixtures" / folder, "precision": "float32"}
    settings |= {"profile": profile, "prompt": {"guards": guards}}
    is_first = profile.startswith("first")
    model = FirstModel(ranker="first", **settings) if is_first else GenerationModel(ranker="generation", **settings)
    unequal = []
    with served(model) as reranker:
        for group, suffix in (("base", ""), ("more", "_more")):
            reference = read(parity / f"rl_author_{name}{suffix}.json")
            for case, (query, texts) in cases(parity, group).items():
                for window in reference[case]:
                    start, end = window["span"]
                    found = encoded(reranker.rankers["it"], query, texts[start:end])
                    if list(found.prompts[0]) != window["ids"]:
                        unequal.append(case)
    assert unequal == ([WITH_MARKUP] if guards else [])


@pytest.mark.usefixtures("_rank_llm")
def test_orders_that_rank_llm_generates_are_equal(parity):
    reference = read(parity / "gen_author.json")
    path = parity / "fixtures/zephyr-gen"
    model = GenerationModel(name="it", ranker="generation", profile="rank-zephyr", path=path, precision="float32")
    with served(model) as reranker:
        for case, (query, texts) in cases(parity, "base", "short").items():
            if case in reference:
                found = reranker.rerank(query, texts, RankOptions(ordered=True))
                assert order_of(found) == reference[case]["order"], case
    assert len(reference) == 27


def test_windows_of_firsts_own_code_are_equal(parity):
    """The prompt of its authors as template.yaml in the folder: their limits, repair and titles."""
    reference = read(parity / "first_author_zephyr.json") | read(parity / "first_author_zephyr_more.json")
    path, unequal = parity / "fixtures" / "first-own", list[str]()
    model = FirstModel(name="it", ranker="first", profile="first-zephyr", path=path, precision="float32")
    with served(model) as reranker:
        for case, (query, texts) in cases(parity, "base", "more").items():
            current, end = list(range(len(texts))), len(texts)
            for window in reference[case]["windows"]:
                start = max(0, end - 20)
                members = current[start:end]
                found = encoded(reranker.rankers["it"], query, [texts[place] for place in members])
                if list(found.prompts[0]) == window["ids"]:
                    expected = torch.tensor(window["letters"][: len(members)]).log_softmax(0)
                    scores = ranked(reranker.rankers["it"], found).scores
                    np.testing.assert_allclose(scores, expected, atol=1e-5, err_msg=case)
                else:
                    unequal.append(case)
                current[start:end] = [members[place] for place in best_first(window["letters"], len(members))]
                end -= 10
            if case in SAME_WINDOWS:
                answer = reranker.rerank(query, texts, RankOptions(ordered=True))
                assert order_of(answer) == reference[case]["final"], case
    assert unequal == [WITH_MARKUP]


def test_losses_of_firsts_own_training_are_equal(parity):
    """Through the prompts, collator and objective of `train-first --profile first-zephyr`."""
    losses = {
        "combined:ranknet:weighted": ("joint", "weighted-ranknet", 10.0),
        "combined:ranknet": ("joint", "ranknet", 1.0),
        "combined:lambda": ("joint", "lambdarank-first", 1.0),
        "combined:listnet": ("joint", "listnet-first", 0.1),
        "ranking:lambda": ("rank", "lambdarank-first", 1.0),
        "ranking:listnet": ("rank", "listnet-first", 1.0),
        "ranking:ranknet": ("rank", "ranknet", 1.0),
        "generation:lambda": ("lm", "ranknet", 1.0),
    }
    reference = read(parity / "first_loss.json")
    base = str(parity / "fixtures" / "first-own")
    arguments = FirstArguments(lists="", base=base, profile="first-zephyr", window_size=20)
    prompt = prompt_settings(arguments, None)
    model, tokenizer = load_base(arguments)
    collator = make_collator(arguments, prompt, model.eval(), tokenizer)
    batch = collator(read_lists(parity / "first_train.jsonl"))
    for name, (objective, loss, weight) in losses.items():
        computed = FirstObjective(objective, rank_loss_named(loss), weight, collator.identifiers.token_ids)  # type: ignore[arg-type]
        with torch.no_grad():
            found = computed.terms(model, batch).sum().item()
        assert found == pytest.approx(reference[f"own:{name}"]["loss"], abs=1e-5), name


def test_prompts_scores_and_orders_of_e2rank_are_equal(parity):
    folder = parity / "fixtures" / "E2Rank-0.6B"
    encoder = EncoderConfig(name=str(folder), pooling="lasttoken", end_token="<|endoftext|>")
    reference = read(parity / "e2_author.json") | read(parity / "e2_author_more.json")
    prompt = AutoTokenizer.from_pretrained(folder).decode(next(iter(reference.values()))["prompt"])
    instruction = prompt.split("\n")[1]  # the first line of the user's turn
    model = E2RankModel(name="it", ranker="e2rank", profile="e2rank", precision="float32", instruction=instruction)
    with served(model, encoder) as reranker:
        for case, (query, texts) in cases(parity, "base", "more").items():
            window = encoded(reranker.rankers["it"], query, texts)
            assert list(window.prompts[0]) == reference[case]["prompt"], case
            answer = reranker.rerank(query, texts, RankOptions(ordered=True))
            assert order_of(answer) == reference[case]["order"], case
            expected = [reference[case]["scores"][item.position] for item in answer.ranked]
            np.testing.assert_allclose([item.score for item in answer.ranked], expected, atol=1e-6, err_msg=case)


@pytest.mark.parametrize("encoder", ["jina-embeddings-v2-base-en", "enc512/jina-embeddings-v2-base-en"])
def test_windows_of_pe_rank_are_equal_whatever_length_the_encoders_folder_states(parity, encoder):
    reference = read(parity / "pe_author.json")
    settings = {"profile": "pe-rank-mistral-jina", "path": parity / "fixtures/pe-ours", "precision": "float32"}
    model = PERankModel(name="it", ranker="pe-rank", **settings)
    with served(model, EncoderConfig(name=str(parity / "fixtures" / encoder))) as reranker:
        ranker = reranker.rankers["it"]
        for case, (query, texts) in cases(parity, "base").items():
            current, end = list(range(len(texts))), len(texts)
            for window in reference[f"emb:{case}"]["windows"]:
                start = max(0, end - 20)
                members = current[start:end]
                found = encoded(ranker, query, [texts[place] for place in members])
                assert [3000 if token == -1 else token for token in found.prompts[0]] == window["ids"], case
                if case != "duplicates":  # equal vectors, which tie here, and there differ by rounding
                    assert list(ranked(ranker, found).permutation) == window["order"], case
                current[start:end] = [members[place] for place in window["order"]]
                end -= 10
            if case in SAME_WINDOWS:
                answer = reranker.rerank(query, texts, RankOptions(ordered=True))
                assert order_of(answer) == reference[f"emb:{case}"]["final"], case
