"""Trainings: steps of `train-first` with LoRA, and a step of all weights against the CPU and the floor."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from rerank_training.first.objective import FirstObjective
from rerank_training.lists.training_list import TrainingList, write_lists
from rerank_training.trainer.gpu import CompiledLayers
from rerank_training.trainer.losses import rank_loss_named

from rerank.types import Passage, Query
from scripts.bench.models import TINY, LlamaSize, llama
from scripts.bench.proof.sections import Row, failed, rate, timed
from scripts.bench.proof.setting import PASSAGES, Proof, attempted, layer_weights

#: Steps of `train-first` and the windows of each; layers are compiled in the first steps, which are not counted.
_STEPS, _WINDOWS, _WARM_UP = 10, 4, 3
#: FLOP for each weight and token: a pass and its gradients; with checkpoints the pass twice, and no gradients of
#: frozen weights.
_OF_ALL_WEIGHTS, _OF_ADAPTER = 6, 6
#: A model whose loss and gradient a CPU computes in seconds.
_COMPARED = LlamaSize(1024, 3072, 4, 16, 8, 8192)
_LARGEST_DIFFERENCE = 1e-2
_SPEED = re.compile(r"step +(\d+)/.* ([\d,]+) tokens/s")
_OBJECTIVE = FirstObjective("joint", rank_loss_named("weighted-ranknet"), 10.0, tuple(range(PASSAGES)))
_COMMAND = "from rerank_training.commands import train_first; train_first()"


def prove_training(proof: Proof) -> Iterator[Row]:
    """Rows of `train-first` for 7B, and of a step of 0.6B."""
    yield from attempted("train-first 7B", partial(_train_first, proof))
    yield from attempted("loss and gradient", partial(_compare, proof))
    yield from attempted("a training step of 0.6B", partial(_step, proof))


def _train_first(proof: Proof) -> Iterator[Row]:
    """Ten steps of four windows; the command prints tokens per second from its first step to the last one."""
    base = proof.checkpoint("7B", proof.size("7B"))
    lists, log = proof.folder / "lists.jsonl", proof.out / "train.log"
    write_lists(lists, _lists(proof))
    arguments = {
        "base": base,
        "lists": lists,
        "lora-rank": 16,
        "bf16": not proof.is_tiny,
        "gradient-checkpointing": True,
        "per-device-train-batch-size": _WINDOWS,
        "max-steps": _STEPS,
        "logging-steps": 1,
        "save-strategy": "no",
        "output-dir": proof.folder / "run",
    }
    flags = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    speeds: dict[int, float] = {}
    with log.open("w", encoding="utf-8", buffering=1) as file, _command(*flags) as command:
        for line in command.stdout or ():
            file.write(line)
            if "not compiled" in line:
                yield failed("train-first 7B", line)
            if found := _SPEED.search(line):
                speeds[int(found[1])] = float(found[2].replace(",", ""))
            if found and int(found[1]) == _STEPS:
                yield _speed_row(proof, speeds)
    if command.returncode or _STEPS not in speeds:
        yield failed("train-first 7B", f"it ended with {command.returncode}: {log.read_text(encoding='utf-8')[-200:]}")


def _command(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _COMMAND, *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _speed_row(proof: Proof, speeds: Mapping[int, float]) -> Row:
    """The steps after layers are compiled, from the speeds since the first step that are printed.

    All steps have as many tokens, so that step n ended n / speed after the first one began.
    """
    steady = (_STEPS - _WARM_UP) / (_STEPS / speeds[_STEPS] - _WARM_UP / speeds[_WARM_UP])
    return rate(
        f"train-first 7B, LoRA 16, gradient checkpointing, {_WINDOWS} windows a step, steps {_WARM_UP + 1} to {_STEPS}",
        *(steady, proof.most_tokens_per_s(layer_weights(llama(proof.size("7B"), "meta")), _OF_ADAPTER)),
        note=f", {speeds[_STEPS]:,.0f} with the steps that compile layers",
    )


def _lists(proof: Proof) -> list[TrainingList]:
    """As many as a step has windows, so that all steps have as many tokens; their judgements are random."""
    draw = random.Random(0)
    return [
        TrainingList(
            Query(query, str(number)),
            tuple(Passage(f"d{index}", text) for index, text in enumerate(texts[:PASSAGES])),
            tuple(draw.random() for _ in range(PASSAGES)),
        )
        for number, (query, texts) in enumerate(proof.lists[:_WINDOWS])
    ]


def _compare(proof: Proof) -> Iterator[Row]:
    """The loss of FIRST and the length of its gradient, in float32 here and on the CPU."""
    size, tokens = (TINY, 40) if proof.is_tiny else (_COMPARED, 400)
    model, batch = _trained(size), _batch(size, tokens)
    expected = _loss_and_gradient(model, batch)
    model, batch = model.to(proof.torch_device), _on(proof, batch)
    for what, ours, cpu in zip(("loss", "gradient"), _loss_and_gradient(model, batch), expected, strict=True):
        difference, name = abs(ours / cpu - 1), f"{what} of a step: relative difference from the CPU"
        if difference <= _LARGEST_DIFFERENCE:
            yield Row(name, f"{difference:.1g}", f"{_LARGEST_DIFFERENCE}")
        else:
            yield failed(name, f"{ours:.6g}, and {cpu:.6g} on the CPU")


def _step(proof: Proof) -> Iterator[Row]:
    """A step of two windows of 2,000 tokens that trains all weights in mixed precision."""
    size, tokens = proof.size("0.6B"), 40 if proof.is_tiny else 2000
    model, batch = _trained(size).to(proof.torch_device), _on(proof, _batch(size, tokens))
    optimizer, layers = torch.optim.AdamW(model.parameters(), fused=True), CompiledLayers(model)

    def forward_and_backward() -> None:
        with torch.autocast(proof.device.kind, torch.bfloat16):
            _OBJECTIVE.terms(model, batch).sum().backward()

    def step(compute: Callable[[], None]) -> None:
        compute()
        optimizer.step()
        optimizer.zero_grad()

    def compiled() -> None:
        layers.run(forward_and_backward, model.zero_grad)

    floor_ms = proof.floor_ms(layer_weights(model), batch["input_ids"].numel(), _OF_ALL_WEIGHTS)
    steps = {"eager": forward_and_backward} if proof.is_tiny else {"eager": forward_and_backward, "compiled": compiled}
    for what, compute in steps.items():
        ms = proof.ms(partial(step, compute), repeats=3)
        yield timed(f"a training step of 0.6B, all weights, 2 x {tokens:,} tokens, {what}", ms, floor_ms)


def _trained(size: LlamaSize) -> Any:
    return llama(size).train().requires_grad_(True)


def _on(proof: Proof, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(proof.torch_device) for name, tensor in batch.items()}


def _batch(size: LlamaSize, tokens: int) -> dict[str, torch.Tensor]:
    """Two windows of random tokens, whose last ones are the answer."""
    torch.manual_seed(0)
    ids = torch.randint(size.vocabulary, (2, tokens))
    bracket = tokens - 10
    labels = ids.clone()
    labels[:, :bracket] = -100
    relevance = torch.rand(2, PASSAGES)
    return {
        "input_ids": ids,
        "labels": labels,
        "bracket_index": torch.full((2,), bracket),
        "relevance": relevance,
        "mask": torch.ones_like(relevance, dtype=torch.bool),
    }


def _loss_and_gradient(model: Any, batch: dict[str, torch.Tensor]) -> tuple[float, float]:
    loss = _OBJECTIVE.terms(model, batch).sum()
    loss.backward()
    length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return loss.item(), length.item()
