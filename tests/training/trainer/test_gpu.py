"""Steps as they are on a GPU, on a CPU: lengths of batches in buckets, and compiled layers. They equal a CPU's."""

import logging
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.pe_rank.training import train_pe_rank
from rerank_training.trainer import ranking_trainer
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.gpu import BucketCollator, CompiledLayers, halve_frozen_weights, positions_of
from rerank_training.trainer.losses import IGNORE_INDEX
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.causal_lms import SIZES
from tests.pe_checkpoints import SHORT, write_published
from tests.training.conftest import FLAGS
from tests.training.small_lists import write_training_lists
from tests.word_lists import first_run, write_inputs


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that keeps the kernels, for most tests: C++ takes half a minute."""
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def weights_of(result: Path) -> dict[str, Tensor]:
    return load_file(next(result.glob("*.safetensors")))


def assert_trained_alike(found: dict[str, Tensor], expected: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """To a hundredth of the steps of every weight, which rounding leaves."""
    assert found.keys() == expected.keys()
    moved = 0
    for name, weight in expected.items():
        if name in before:
            moved += (step := (weight - before[name]).norm().item()) > 0
            assert (found[name] - weight).norm() <= 1e-2 * step + 1e-7, name
    assert moved


@pytest.mark.slow
def test_training_is_that_of_a_cpu(train, checkpoint, compiler, tmp_path, monkeypatch):
    expected = weights_of(train(tmp_path / "cpu"))
    monkeypatch.setattr(ranking_trainer, "runs_on_gpu", lambda _: True)
    before = weights_of(tmp_path / "base" if (tmp_path / "base").is_dir() else checkpoint)
    torch._dynamo.reset()  # another test may have compiled the same layers
    torch._dynamo.utils.counters.clear()
    assert_trained_alike(weights_of(train(tmp_path / "gpu")), expected, before)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


@pytest.mark.slow
def test_adapter_with_compiled_kernels_and_gradient_checkpointing_learns_as_without(tmp_path, monkeypatch, caplog):
    inputs = write_inputs(tmp_path, 6)
    flags = shlex.split(
        "--lora-rank 2 --gradient-checkpointing --optim sgd --max-steps 2 --per-device-train-batch-size 3 "
        "--learning-rate 1 --save-steps 1"
    )
    run = partial(first_run, inputs, tmp_path / "cpu", *flags)
    expected, before = weights_of(run()), load_file(tmp_path / "cpu" / "checkpoint-1" / "adapter_model.safetensors")
    monkeypatch.setattr(ranking_trainer, "runs_on_gpu", lambda _: True)
    found = weights_of(first_run(inputs, tmp_path / "gpu", *flags))
    torch._dynamo.reset()
    assert torch._dynamo.utils.counters["inductor"]
    assert "not compiled" not in caplog.text
    assert_trained_alike(found, expected, before)


# --- buckets


@pytest.mark.parametrize(("tokens", "padded"), [(1, 128), (128, 128), (129, 256), (257, 300), (300, 300), (301, 301)])
def test_lengths_are_multiples_of_128_up_to_what_the_model_reads(tokens, padded):
    names = ("input_ids", "text_input_ids", "prompt_ids", "attention_mask", "prompt_mask", "labels")
    others = {"relevance": torch.ones(2, 5), "vectors": torch.ones(2, 5, 7), "order": torch.ones(2, 5)}
    batch = dict.fromkeys(names, torch.ones(2, tokens, dtype=torch.long)) | others
    found = BucketCollator(lambda _: batch, max_tokens=300)([])
    assert found.keys() == batch.keys()
    for name in names:
        assert found[name].shape == (2, padded)
        behind = found[name][:, tokens:]
        assert torch.equal(behind, torch.full_like(behind, IGNORE_INDEX if name == "labels" else 0))
    assert all(found[name] is tensor for name, tensor in others.items())


def test_positions_are_those_of_the_transformer_within():
    assert positions_of(nn.ModuleDict({"a": tiny_lm(), "b": nn.Linear(2, 2)})) == SIZES["max_position_embeddings"]
    assert positions_of(nn.Linear(2, 2)) > 10**6


# --- frozen weights


def test_frozen_weights_are_halved_if_all_of_them_keep_their_values():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    trained = model[1].weight.requires_grad_(True)
    halve_frozen_weights(model)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    before = model.bfloat16().float().state_dict()
    halve_frozen_weights(model)
    assert {weight.dtype for weight in model.parameters() if weight is not trained} == {torch.bfloat16}
    assert trained.dtype == torch.float32
    assert all(torch.equal(weight.float(), before[name]) for name, weight in model.state_dict().items())


@pytest.mark.slow
def test_adapter_on_weights_of_bfloat16_is_merged_without_losing_its_small_changes(encoder, tmp_path):
    base = write_published(tmp_path / "base", encoder, template=SHORT)
    weights = {name: weight.bfloat16() for name, weight in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    lists = str(write_training_lists(tmp_path / "lists.jsonl", 6))
    arguments = PERankArguments(lists=lists, base=str(base), window_size=4, lora_rank=2)
    flags = FLAGS | {"bf16": True, "optim": "adamw_torch", "learning_rate": 1e-5}
    found = weights_of(train_pe_rank(arguments, RunArguments(output_dir=str(tmp_path / "run"), **flags), encoder))
    save = load_file(tmp_path / "run" / "checkpoint-1" / "model.safetensors")
    assert {weight.dtype for name, weight in save.items() if "base_layer" in name} == {torch.bfloat16}
    name = "model.layers.0.self_attn.q_proj.weight"
    changes = (found[name] - weights[name].float()).abs()
    assert changes.max() < 1e-4
    assert (changes > 0).float().mean() > 0.9


# --- compiled layers


def tiny_lm() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=50, **SIZES)).train()
    return model


def loss_of(model: nn.Module, tokens: int) -> float:
    """Backward, too."""
    loss = model(input_ids=torch.arange(tokens)[None] % 50, use_cache=False).logits.square().mean()
    loss.backward()
    return float(loss.detach())


def test_all_layers_and_lengths_share_one_graph_and_evaluations_have_none(compiler):
    torch._dynamo.reset()
    torch._dynamo.reset()  # another test may have compiled the same layers
    torch._dynamo.utils.counters.clear()
    model, plain = tiny_lm(), tiny_lm()
    layers = CompiledLayers(model)
    for tokens in (128, 256, 384):
        assert layers.run(partial(loss_of, model, tokens), model.zero_grad) == pytest.approx(loss_of(plain, tokens))
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6)
    counters = torch._dynamo.utils.counters
    assert (counters["stats"]["unique_graphs"], dict(counters["graph_break"])) == (1, {})
    with torch.no_grad():
        model.eval()(input_ids=torch.arange(128)[None] % 50)
    assert counters["stats"]["unique_graphs"] == 1


def test_compiled_layers_of_an_adapter_get_no_float_as_a_tensor_on_the_cpu(monkeypatch):
    scalars: list[list[str]] = []

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        scalars.append([str(value) for value in inputs if isinstance(value, Tensor) and value.ndim == 0])
        return graph.forward

    monkeypatch.setattr("torch.compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    model = get_peft_model(tiny_lm(), LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    CompiledLayers(model).run(partial(loss_of, model, 20), model.zero_grad)
    torch._dynamo.reset()
    assert scalars
    assert not any(scalars)


def test_compiler_that_fails_leaves_the_layers_as_they_are(monkeypatch, caplog):
    def broken(*_: Any) -> Any:
        raise OSError("no compiler\nis installed")

    monkeypatch.setattr("torch.compile", partial(torch.compile, backend=broken))
    model, plain = tiny_lm(), tiny_lm()
    layers = CompiledLayers(model)
    with caplog.at_level(logging.WARNING):
        losses = [layers.run(partial(loss_of, model, 20), model.zero_grad) for _ in range(2)]
    torch._dynamo.reset()
    assert losses == [loss_of(plain, 20)] * 2
    (record,) = [record for record in caplog.records if "not compiled" in record.message]
    assert "no compiler is installed" in record.message


def test_error_of_a_step_is_not_taken_for_one_of_the_compiler(caplog):
    """Nor is one after a first step that worked."""
    layers, calls = CompiledLayers(nn.Linear(2, 2)), list[int]()

    def out_of_memory() -> None:
        calls.append(1)
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        layers.run(out_of_memory, list)
    assert layers.run(lambda: 3, list) == 3
    with pytest.raises(ZeroDivisionError):
        layers.run(lambda: 1 / 0, list)
    assert calls == [1]
    assert "not compiled" not in caplog.text
