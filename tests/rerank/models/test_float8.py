"""Linear layers in float8: near bfloat16's, in the layers of a model only, on GPUs that have it."""

from __future__ import annotations

import pytest
import torch

from rerank.errors import ConfigError
from rerank.models.float8 import Float8Linear, check_float8, use_float8
from rerank.models.precision import pick_encoder_dtype, pick_precision
from tests.random_models import DECODERS, random_model


@pytest.mark.parametrize("bias", [False, True])
def test_outputs_are_near_bfloat16(bias: bool) -> None:
    torch.manual_seed(0)
    linear, inputs = torch.nn.Linear(256, 64, bias=bias).bfloat16(), torch.randn(3, 5, 256).bfloat16()
    inputs[0, 0] *= 1000  # each position has a scale
    outputs, expected = Float8Linear(linear)(inputs).float(), linear(inputs).float()
    assert outputs.shape == expected.shape
    error = (outputs - expected).std(dim=-1) / expected.std(dim=-1)
    assert 0 < error.max() < 0.1


def test_zeros_stay_zeros() -> None:
    linear = Float8Linear(torch.nn.Linear(32, 16, bias=False).bfloat16())
    assert not linear(torch.zeros(2, 32, dtype=torch.bfloat16)).any()


def test_layers_are_rounded_and_head_and_embeddings_are_not() -> None:
    model = random_model(DECODERS["llama"])
    names = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    use_float8(model)
    rounded = {name for name, module in model.named_modules() if isinstance(module, Float8Linear)}
    assert rounded == {name for name in names if ".layers." in name}
    assert rounded


def test_device_without_float8_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"float8 needs a GPU of compute capability 8.9 .*, this is device cpu; use auto"
    ):
        check_float8(torch.device("cpu"))
    with pytest.raises(ConfigError, match="float8 needs a GPU"):
        pick_precision(random_model(DECODERS["llama"]), "float8")


def test_narrow_model_in_float8_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("rerank.models.precision.check_float8", lambda _: None)
    model = random_model(DECODERS["llama"])
    assert pick_precision(model, "float8") == "float8"
    assert "narrow models" in caplog.text
    assert f"this has {model.config.hidden_size};" in caplog.text
    caplog.clear()
    model.config.hidden_size = 2048
    pick_precision(model, "float8")
    assert not caplog.text


def test_encoder_next_to_a_model_in_float8_computes_in_bfloat16() -> None:
    assert pick_encoder_dtype(torch.device("cpu"), "float8") == "bfloat16"
