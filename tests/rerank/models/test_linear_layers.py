"""Linear layers by oneDNN and in float8: near what torch computes, and only in the layers that may be changed."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.errors import ConfigError
from rerank.models.linear_layers import Float8Linear, check_float8, compute_by_onednn, use_float8, use_onednn
from rerank.models.precision import pick_encoder_dtype, pick_precision
from tests.random_models import DECODERS, random_model, random_sequences

CONFIG = DECODERS["llama"]


def changed(model: PreTrainedModel) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module.weight.is_mkldnn]


@pytest.mark.parametrize("shape", [(1, 32), (7, 32), (3, 5, 32), (1500, 32)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_results_equal_torch(shape, bias):
    linear, x = nn.Linear(32, 48, bias=bias), torch.randn(shape)
    expected = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    compute_by_onednn(linear)
    torch.testing.assert_close(linear(x).double(), expected, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_model_gives_the_same_logits():
    model, same, ids = random_model(CONFIG), random_model(CONFIG), random_sequences()[0][None]
    use_onednn(model, torch.float32)
    torch.testing.assert_close(model(ids).logits, same(ids).logits, atol=1e-5, rtol=0)


def test_model_stays_as_it_is_where_torch_has_no_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = random_model(CONFIG)
    use_onednn(model, torch.float32)
    assert not changed(model)


#: Prints how many MB the layers of an MLP keep after 100 numbers of rows.
_MEMORY = """
import psutil, torch
from torch import nn
from rerank.models.linear_layers import compute_by_onednn
layers = nn.Sequential(nn.Linear(384, 1536), nn.Linear(1536, 384)).requires_grad_(False)
for layer in layers:
    compute_by_onednn(layer)
resident_mb = lambda: psutil.Process().memory_info().rss / 1e6
layers(torch.rand(100, 384))
before_mb = resident_mb()
for rows in range(1, 100):
    layers(torch.rand(rows, 384))
print(resident_mb() - before_mb)
"""


def test_memory_does_not_grow_with_the_number_of_shapes():
    capacities = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    env = {name: value for name, value in os.environ.items() if name not in capacities}
    run = subprocess.run([sys.executable, "-c", _MEMORY], env=env, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 50  # 125 with the cache that oneDNN has otherwise


@pytest.mark.parametrize("bias", [False, True])
def test_outputs_are_near_bfloat16(bias):
    torch.manual_seed(0)
    linear, inputs = torch.nn.Linear(256, 64, bias=bias).bfloat16(), torch.randn(3, 5, 256).bfloat16()
    inputs[0, 0] *= 1000  # each position has a scale
    outputs, expected = Float8Linear(linear)(inputs).float(), linear(inputs).float()
    assert outputs.shape == expected.shape
    error = (outputs - expected).std(dim=-1) / expected.std(dim=-1)
    assert 0 < error.max() < 0.1


def test_zeros_stay_zeros():
    linear = Float8Linear(torch.nn.Linear(32, 16, bias=False).bfloat16())
    assert not linear(torch.zeros(2, 32, dtype=torch.bfloat16)).any()


def test_layers_are_rounded_and_head_and_embeddings_are_not():
    model = random_model(DECODERS["llama"])
    names = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    use_float8(model)
    rounded = {name for name, module in model.named_modules() if isinstance(module, Float8Linear)}
    assert rounded == {name for name in names if ".layers." in name}
    assert rounded


def test_device_without_float8_is_refused():
    message = r"float8 needs a GPU of compute capability 8.9 .*, this is device cpu; use auto"
    with pytest.raises(ConfigError, match=message):
        check_float8(torch.device("cpu"))
    with pytest.raises(ConfigError, match="float8 needs a GPU"):
        pick_precision(random_model(DECODERS["llama"]), "float8")


def test_narrow_model_in_float8_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr("rerank.models.precision.check_float8", lambda _: None)
    model = random_model(DECODERS["llama"])
    assert pick_precision(model, "float8") == "float8"
    assert "narrow models" in caplog.text
    assert f"this has {model.config.hidden_size};" in caplog.text
    caplog.clear()
    model.config.hidden_size = 2048
    pick_precision(model, "float8")
    assert not caplog.text


def test_encoder_next_to_a_model_in_float8_computes_in_bfloat16():
    assert pick_encoder_dtype(torch.device("cpu"), "float8") == "bfloat16"
