"""Linear layers by oneDNN: they give what torch's give, and only those are changed that may be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from rerank.models.onednn import compute_by_onednn, use_onednn
from tests.random_models import DECODERS, random_model, random_sequences

CONFIG = DECODERS["llama"]


def changed(model: PreTrainedModel) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module.weight.is_mkldnn]


@pytest.mark.parametrize("shape", [(1, 32), (7, 32), (3, 5, 32), (1500, 32)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_results_equal_torch(shape: tuple[int, ...], bias: bool) -> None:
    linear, x = nn.Linear(32, 48, bias=bias), torch.randn(shape)
    expected = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    compute_by_onednn(linear)
    torch.testing.assert_close(linear(x).double(), expected, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_model_gives_the_same_logits() -> None:
    model, same, ids = random_model(CONFIG), random_model(CONFIG), random_sequences()[0][None]
    use_onednn(model, torch.float32)
    torch.testing.assert_close(model(ids).logits, same(ids).logits, atol=1e-5, rtol=0)


def test_model_stays_as_it_is_where_torch_has_no_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = random_model(CONFIG)
    use_onednn(model, torch.float32)
    assert not changed(model)


#: Prints how many MB the layers of an MLP keep after 100 numbers of rows.
_MEMORY = """
import psutil, torch
from torch import nn
from rerank.models.onednn import compute_by_onednn
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


def test_memory_does_not_grow_with_the_number_of_shapes() -> None:
    capacities = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    env = {name: value for name, value in os.environ.items() if name not in capacities}
    run = subprocess.run([sys.executable, "-c", _MEMORY], env=env, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 50  # 125 with the cache that oneDNN has otherwise
