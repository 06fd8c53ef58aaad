"""What an inference server must be for its scores to be used, and what a request sees if it is not."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from rerank.config import ApiModel, EngineConfig, FirstModel, GenerationModel
from rerank.engine.engine import Engine
from rerank.errors import ModelServerUnfit
from rerank.inference_servers.api import LlamaCppApi, VllmApi
from rerank.rankers.base import Ranker
from rerank.reranking.load_models import load_remote
from tests.rerank.inference_servers.cases import adapter, plain, request
from tests.rerank.inference_servers.stand_in import StandIn


@asynccontextmanager
async def opened(model: ApiModel | FirstModel | GenerationModel) -> AsyncIterator[tuple[Engine, Ranker]]:
    ranker = load_remote(model)
    async with Engine({"zephyr": ranker}, EngineConfig()) as engine:
        yield engine, ranker


def changed(server: StandIn, path: str, change: Callable[[Any], Any]) -> None:
    """Changes all recorded replies to a method from now on."""
    for key, reply in server.replies.items():
        if f" {path} " in key:
            body = json.loads(json.dumps(reply.body))
            server.replies[key] = replace(reply, body=change(body))


def scores_changed(server: StandIn, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the log-probabilities of all recorded replies of vLLM from now on; `change` works in place."""

    def changed_body(body: Any) -> Any:
        if body["choices"][0]["logprobs"]:
            change(body["choices"][0]["logprobs"]["top_logprobs"][0])
        return body

    changed(server, "/v1/completions", changed_body)


def drop_last(log_probs: dict[str, Any]) -> None:
    del log_probs[list(log_probs)[-1]]


async def test_server_without_scores_of_all_identifiers_is_refused_with_what_it_lacks(vllm):
    scores_changed(vllm, drop_last)
    async with opened(adapter(vllm.url)) as (engine, ranker):
        assert "51 of 52 identifiers; this vLLM knows no logprob_token_ids" in ranker.problem
        with pytest.raises(ModelServerUnfit, match=f"{vllm.url}.*run vLLM 0.32"):
            await engine.run(request())


@pytest.mark.parametrize(
    ("change", "message"),
    [(drop_last, "3 of 4 identifiers"), (lambda found: found.update({[*found][-1]: float("nan")}), "not finite")],
    ids=["an identifier is missing", "NaN"],
)
async def test_answer_without_scores_is_an_error_and_no_ranking(vllm, change, message):
    async with opened(adapter(vllm.url)) as (engine, _):
        scores_changed(vllm, change)
        with pytest.raises(ModelServerUnfit, match=f"{vllm.url}.*{message}"):
            await engine.run(request())


async def test_model_of_another_name_is_refused(vllm):
    model = adapter(vllm.url)
    other = model.model_copy(update={"served_by": model.served_by.model_copy(update={"model": "zephyr-7b"})})
    async with opened(other) as (_, ranker):
        assert "serves smollm2, first, not zephyr-7b; correct served_by.model" in ranker.problem


async def test_tokenizer_that_is_not_the_servers_is_refused(vllm):
    changed(vllm, "/tokenize", lambda body: body | {"tokens": body["tokens"][:-1]})
    async with opened(adapter(vllm.url)) as (_, ranker):
        assert "set `path` to the tokenizer of the served model" in ranker.problem


async def test_weights_that_do_not_give_the_golden_scores_are_refused(vllm):
    scores_changed(vllm, lambda log_probs: log_probs.update({k: v * 3 for k, v in log_probs.items()}))
    async with opened(adapter(vllm.url)) as (engine, ranker):
        assert f"{vllm.url}: self-test: scores differ from golden.json" in ranker.problem
        with pytest.raises(ModelServerUnfit, match=r"golden\.json"):
            await engine.run(request())


async def test_prompts_fit_the_length_that_the_server_reads(vllm):
    changed(vllm, "/v1/models", lambda body: {"data": [card | {"max_model_len": 300} for card in body["data"]]})
    async with opened(adapter(vllm.url)) as (_, ranker):
        assert ranker.info.max_window_tokens == 300


async def test_windows_hold_as_many_passages_as_the_server_scores(vllm, monkeypatch):
    assert load_remote(plain(vllm.url)).info.max_window_size == 52
    monkeypatch.setattr(VllmApi, "most_token_ids", 20)
    assert load_remote(plain(vllm.url)).info.max_window_size == 20


@pytest.mark.parametrize("api", [VllmApi("m"), LlamaCppApi("m")], ids=lambda api: type(api).__name__)
@pytest.mark.parametrize(
    "answer", [{}, [], None, {"choices": []}, {"meta_info": None}, {"completion_probabilities": []}]
)
def test_answer_of_another_form_raises_what_the_ranker_expects(api, answer):
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        api.log_probs(answer)
