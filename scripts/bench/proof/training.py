"""Trainings: steps of `train-first` with LoRA, and a step of all weights against the CPU and the floor."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from typing import Any, TypeAlias

import torch
from rerank_training.commands import train_first
from rerank_training.first.objective import FirstObjective
from rerank_training.lists.training_list import TrainingList, write_lists
from rerank_training.trainer.gpu import CompiledLayers
from rerank_training.trainer.losses import rank_loss_named

from rerank.types import Passage, Query
from scripts.bench.models import LlamaSize, llama
from scripts.bench.proof.setting import Proof
from scripts.bench.proof.table import Row, attempted, failed, rate, timed
from scripts.bench.workload import PASSAGES

Batch: TypeAlias = dict[str, torch.Tensor]

#: Steps of `train-first` and the windows of each; layers are compiled in the first steps, which are not counted.
_STEPS, _WINDOWS, _WARM_UP = 10, 4, 3
#: FLOP for each weight and token: a pass and its gradients; or with checkpoints the pass twice, and no gradients of
#: frozen weights.
_FLOP = 6
#: A model whose loss and gradient a CPU computes in seconds.
_COMPARED = LlamaSize(1024, 3072, 4, 16, 8, 8192)
_LARGEST_DIFFERENCE = 1e-2
_SPEED = re.compile(r"step +(\d+)/.* ([\d,]+) tokens/s")
_OBJECTIVE = FirstObjective("joint", rank_loss_named("weighted-ranknet"), 10.0, tuple(range(PASSAGES)))


def prove_training(proof: Proof) -> Iterator[Row]:
    """Rows of `train-first` for 7B, and of a step of 0.6B."""
    yield from attempted("train-first 7B", partial(_train_first, proof))
    proof.free_memory()
    yield from attempted("loss and gradient", partial(_compare, proof))
    yield from attempted("a training step of 0.6B", partial(_step, proof))


def _train_first(proof: Proof) -> Iterator[Row]:
    """Ten steps of four windows; the command prints tokens per second from its first step to the last one."""
    lists, log, draw, size = proof.folder / "lists.jsonl", proof.out / "train.log", random.Random(0), proof.size("7B")
    write_lists(lists, [_list(draw, *texts) for texts in proof.lists[:_WINDOWS]])
    base = proof.checkpoint("7B", size)
    flags = (
        f"--base {base} --lists {lists} --output-dir {proof.folder / 'run'} --lora-rank 16 --gradient-checkpointing "
    )
    flags += f"--per-device-train-batch-size {_WINDOWS} --max-steps {_STEPS} --logging-steps 1 --save-strategy no"
    flags += "" if proof.is_tiny else " --bf16"
    with log.open("w", encoding="utf-8", buffering=1) as file, redirect_stdout(file), proof.weights_on_device():
        train_first.args[0](flags.split(), standalone_mode=False)
    yield _speed_row(proof, size, log.read_text(encoding="utf-8"))


def _list(draw: random.Random, query: str, texts: list[str]) -> TrainingList:
    """A window with random judgements. There are as many as a step has, so that all steps have as many tokens."""
    passages = tuple(Passage(f"d{index}", text) for index, text in enumerate(texts[:PASSAGES]))
    return TrainingList(Query(query, query), passages, tuple(draw.random() for _ in passages))


def _speed_row(proof: Proof, size: LlamaSize, printed: str) -> Row:
    """The steps after layers are compiled, from the speeds since the first step that are printed.

    All steps have as many tokens, so that step n ended n / speed after the first one began.
    """
    speeds = {int(step): float(speed.replace(",", "")) for step, speed in _SPEED.findall(printed)}
    steady = (_STEPS - _WARM_UP) / (_STEPS / speeds[_STEPS] - _WARM_UP / speeds[_WARM_UP])
    what = (
        f"train-first 7B, LoRA 16, gradient checkpointing, {_WINDOWS} windows a step, steps {_WARM_UP + 1} to {_STEPS}"
    )
    note = f", {speeds[_STEPS]:,.0f} with the steps that compile layers"
    return rate(what, steady, proof.most_tokens_per_s(size, _FLOP), note=note)


def _compare(proof: Proof) -> Iterator[Row]:
    """The loss of FIRST and the length of its gradient, in float32 here and on the CPU."""
    size = proof.size("") if proof.is_tiny else _COMPARED
    model, batch = llama(size).train().requires_grad_(True), _batch(size, 40 if proof.is_tiny else 400)
    expected = _loss_and_gradient(model, batch)
    found = _loss_and_gradient(model.to(proof.device), _on(proof, batch))
    for what, ours, cpu in zip(("loss", "gradient"), found, expected, strict=True):
        difference, name = abs(ours / cpu - 1), f"{what} of a step: relative difference from the CPU"
        if difference <= _LARGEST_DIFFERENCE:
            yield Row(name, f"{difference:.1g}", f"{_LARGEST_DIFFERENCE}")
        else:
            yield failed(name, f"{ours:.6g}, and {cpu:.6g} on the CPU")


def _loss_and_gradient(model: Any, batch: Batch) -> tuple[float, float]:
    loss = _OBJECTIVE.terms(model, batch).sum()
    loss.backward()
    length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return loss.item(), length.item()


def _step(proof: Proof) -> Iterator[Row]:
    """A step of two windows of 2,000 tokens that trains all weights in mixed precision; compiled on a GPU."""
    size, tokens = proof.size("0.6B"), 40 if proof.is_tiny else 2000
    model = llama(size, proof.device).train().requires_grad_(True)
    optimizer, layers, batch = (
        torch.optim.AdamW(model.parameters(), fused=True),
        CompiledLayers(model),
        _on(proof, _batch(size, tokens)),
    )

    def forward_and_backward() -> None:
        with torch.autocast(proof.device.type, torch.bfloat16):
            _OBJECTIVE.terms(model, batch).sum().backward()

    def step() -> None:
        forward_and_backward() if proof.is_tiny else layers.run(forward_and_backward, model.zero_grad)
        optimizer.step()
        optimizer.zero_grad()

    what = f"a training step of 0.6B, all weights, 2 x {tokens:,} tokens"
    yield timed(what, proof.ms(step), proof.floor_ms(size, 2 * tokens, _FLOP))


def _on(proof: Proof, batch: Batch) -> Batch:
    return {name: tensor.to(proof.device) for name, tensor in batch.items()}


def _batch(size: LlamaSize, tokens: int) -> Batch:
    """Two windows of random tokens, whose last ones are the answer."""
    torch.manual_seed(0)
    ids, relevance, bracket = torch.randint(size.vocabulary, (2, tokens)), torch.rand(2, PASSAGES), tokens - 10
    labels = ids.clone()
    labels[:, :bracket] = -100
    given = {"input_ids": ids, "labels": labels, "bracket_index": torch.full((2,), bracket), "relevance": relevance}
    return given | {"mask": torch.ones_like(relevance, dtype=torch.bool)}
