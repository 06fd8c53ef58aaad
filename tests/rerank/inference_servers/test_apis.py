"""The requests and answers of inference servers. Those of SGLang are as documented; no real server was recorded."""

from __future__ import annotations

import math

import pytest

from rerank.inference_servers.api import ModelCard, Post
from rerank.inference_servers.llama_cpp import LlamaCppApi
from rerank.inference_servers.sglang import SglangApi
from rerank.inference_servers.vllm import VllmApi


def test_sglang_is_asked_for_named_tokens() -> None:
    asked = SglangApi("zephyr").score((1, 2), (30, 31))
    sampling = {"temperature": 0, "max_new_tokens": 1}
    named = {"return_logprob": True, "token_ids_logprob": [30, 31]}
    assert asked == Post("/generate", {"input_ids": [1, 2], "sampling_params": sampling} | named)


def test_sglang_adapter_is_named_beside_its_base() -> None:
    assert SglangApi("base:first").score((1,), (2,)).body["lora_path"] == "first"
    cards = [{"id": "base", "max_model_len": 4096}, {"id": "first", "parent": "base", "max_model_len": None}]
    assert ModelCard("base:first", 4096) in SglangApi("base:first").models({"data": cards})


def test_sglang_answer_has_value_token_and_text() -> None:
    answer = {"text": "A", "meta_info": {"output_token_ids_logprobs": [[[-0.5, 30, None], [-1.5, 31, None]]]}}
    api = SglangApi("zephyr")
    assert api.log_probs(answer) == {30: -0.5, 31: -1.5}
    assert api.text(answer) == "A"
    assert api.tokens({"tokens": [1, 2], "count": 2}) == [1, 2]


def test_llama_cpp_probability_that_rounds_to_0_stays_finite() -> None:
    answer = {"completion_probabilities": [{"top_probs": [{"id": 30, "prob": 1.0}, {"id": 31, "prob": 0.0}]}]}
    log_probs = LlamaCppApi("zephyr").log_probs(answer)
    assert log_probs[30] == 0.0
    assert math.isfinite(log_probs[31])
    assert log_probs[31] < -100


@pytest.mark.parametrize("api", [VllmApi("m"), SglangApi("m"), LlamaCppApi("m")], ids=lambda api: type(api).__name__)
@pytest.mark.parametrize(
    "answer", [{}, [], None, {"choices": []}, {"meta_info": None}, {"completion_probabilities": []}]
)
def test_answer_of_another_form_raises_what_the_ranker_expects(api: VllmApi, answer: object) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        api.log_probs(answer)
