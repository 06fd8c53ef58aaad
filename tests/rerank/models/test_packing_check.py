"""Packed sequences give what each gives alone; a model that cannot be packed is read one by one, with a warning."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from transformers import AutoModel, GraniteConfig

from rerank.models.packing_check import make_last_token_reader
from tests.random_models import (
    GROUPED_QUERIES,
    NOT_PACKABLE,
    PACKABLE,
    SHORTENED,
    last_logits,
    random_model,
    random_sequences,
)


@pytest.mark.parametrize("name", PACKABLE)
def test_packed_sequences_give_what_each_gives_alone(name: str) -> None:
    expected = last_logits(random_model(PACKABLE[name]), random_sequences())
    reader = make_last_token_reader(random_model(PACKABLE[name]))
    assert reader.batching == "packed"
    assert expected.std() > 0.1, "equal logits would prove nothing"
    torch.testing.assert_close(reader.read(random_sequences()), expected, atol=1e-5, rtol=0)
    one_by_one = torch.cat([reader.read([ids]) for ids in random_sequences()])
    torch.testing.assert_close(one_by_one, expected, atol=1e-5, rtol=0)
    assert reader.last_layer_shortened == (name in SHORTENED)


@pytest.mark.parametrize("name", NOT_PACKABLE)
def test_model_that_cannot_be_packed_is_read_one_by_one_with_a_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config, problem = NOT_PACKABLE[name]
    expected = last_logits(random_model(config), random_sequences())
    with caplog.at_level(logging.WARNING, "rerank.models.packing_check"):
        reader = make_last_token_reader(random_model(config))
    assert reader.batching == "one_by_one"
    assert problem in caplog.text
    torch.testing.assert_close(reader.read(random_sequences()), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("gpt2", {"sliding_window": 4096}, "the sliding window reached 0 of 3 layers"),
        ("llama", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "chunked_attention"),
    ],
    ids=["window that attention never sees", "unknown layer type"],
)
def test_problem_that_short_sequences_cannot_show_excludes_packing(
    name: str, settings: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(PACKABLE[name])
    for key, value in settings.items():
        setattr(model.config, key, value)
    assert make_last_token_reader(model).batching == "one_by_one"
    assert problem in caplog.text


def test_transformer_without_a_head_gives_its_last_states() -> None:
    torch.manual_seed(0)
    transformer = AutoModel.from_config(copy.deepcopy(PACKABLE["llama"])).eval()
    vectors = [transformer.get_input_embeddings()(ids).detach() for ids in random_sequences()]
    with torch.inference_mode():
        expected = [transformer(inputs_embeds=row[None]).last_hidden_state[0, -1] for row in vectors]
    reader = make_last_token_reader(transformer)
    assert reader.batching == "packed"
    torch.testing.assert_close(reader.read(vectors), torch.stack(expected), atol=1e-5, rtol=0)


def test_forward_without_logits_to_keep_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(PACKABLE["gpt2"])
    expected = last_logits(model, random_sequences())
    original = model.forward

    def forward(input_ids: torch.Tensor, **options: Any) -> Any:
        return original(input_ids=input_ids, **options)

    monkeypatch.setattr(model, "forward", forward)
    torch.testing.assert_close(make_last_token_reader(model).read(random_sequences()), expected, atol=1e-5, rtol=0)


def test_last_layer_with_other_arithmetic_is_not_shortened() -> None:
    """Granite scales its residuals; without the scale its layers are Llama's."""
    assert not make_last_token_reader(random_model(PACKABLE["granite"])).last_layer_shortened
    assert make_last_token_reader(random_model(GraniteConfig(**GROUPED_QUERIES))).last_layer_shortened
