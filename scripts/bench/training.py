"""Training on a device: a step of all weights against the CPU and the floor, and steps of `train-first` with LoRA."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.helpers import disable_input_dtype_casting
from rerank_training.first.examples import FirstCollator
from rerank_training.first.objective import FirstObjective
from rerank_training.first.prompt import PromptSettings
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.flags import LORA_ALPHA
from rerank_training.trainer.gpu import CompiledLayers
from rerank_training.trainer.losses import rank_loss_named
from rerank_training.trainer.ranking_trainer import RankingTrainer
from transformers import TrainerCallback

from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import load_template
from rerank.types import Passage, Query
from scripts.bench.gpu import PASSAGES, Proof, byte_tokenizer, measure_matrices, parameter_count
from scripts.bench.models import MISTRAL_7B, TINY, llama
from scripts.bench.timing import Values

#: Steps of `train-first`, the windows of each, and the steps whose times are not counted, in which layers are compiled.
_STEPS, _WINDOWS, _WARM_UP = 10, 4, 3


def measure_training(proof: Proof) -> Values:
    """A step of `train-first` with all weights: loss and gradient against the CPU's, time against the floor, memory.

    Raises:
        AssertionError: loss or gradient differ by more than a hundredth.
    """
    rate = 1e12 * max(measure_matrices(proof)["matrix product, TFLOP/s"])
    model, batch = llama(proof.small).train().requires_grad_(True), _batch(proof)
    expected = _loss_and_gradient(model, batch)
    model, batch = model.to(proof.device), {name: tensor.to(proof.device) for name, tensor in batch.items()}
    values: Values = {}
    for what, ours, cpu in zip(("loss", "gradient"), _loss_and_gradient(model, batch), expected, strict=True):
        difference = abs(ours / cpu - 1)
        assert difference <= 1e-2, f"{what} is {ours:.6g}, and {cpu:.6g} on the CPU"
        values[f"{what}: relative difference from the CPU"] = [difference]
    optimizer, layers = torch.optim.AdamW(model.parameters(), fused=True), CompiledLayers(model)

    def forward_and_backward() -> None:
        with torch.autocast(proof.device.type, torch.bfloat16):
            _OBJECTIVE.loss(model, batch).backward()

    def compiled() -> None:
        layers.run(forward_and_backward, model.zero_grad)

    def step(compute: Callable[[], None]) -> None:
        compute()
        optimizer.step()
        optimizer.zero_grad()

    steps = {"step": forward_and_backward} if proof.is_tiny else {"eager step": forward_and_backward, "step": compiled}
    floor = 6 * parameter_count(model) * batch["input_ids"].numel() / rate
    for name, seconds in proof.seconds({name: partial(step, compute) for name, compute in steps.items()}).items():
        values[f"{name} / floor"] = [second / floor for second in seconds]
    return values | proof.peak_gib(partial(step, steps["step"]))


def measure_train_first(proof: Proof) -> Values:
    """Ten steps of four windows as `train-first --lora-rank 16 --bf16 --gradient-checkpointing` takes them.

    The floor is two forward passes and the backward pass to the inputs.
    """
    size = TINY if proof.is_tiny else MISTRAL_7B
    model = get_peft_model(proof.model(size), LoraConfig(r=16, lora_alpha=LORA_ALPHA, target_modules="all-linear"))
    tokenizer = byte_tokenizer()
    prompt = PromptSettings(load_template("first"), IdentifierKind.LETTERS, PASSAGES, passage_tokens=0)
    settings = RunArguments(
        output_dir=str(proof.folder / "run"),
        max_steps=_STEPS,
        per_device_train_batch_size=_WINDOWS,
        learning_rate=1e-4,
        bf16=not proof.is_tiny,
        gradient_checkpointing=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
    )
    clock = _Clock(proof.device)
    trainer = RankingTrainer(
        _OBJECTIVE,
        model=model,
        args=settings,
        train_dataset=_lists(proof),
        data_collator=FirstCollator(tokenizer, prompt, 8192),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    rate = 1e12 * max(measure_matrices(proof)["matrix product, TFLOP/s"])
    with disable_input_dtype_casting(model):
        peak = proof.peak_gib(trainer.train)
    tokens = trainer.state.num_input_tokens_seen / _STEPS
    floor = 6 * parameter_count(model.get_base_model()) * tokens / rate
    seconds = clock.seconds()
    return {
        "first step, s": seconds[:1],
        "tokens/s": [tokens / second for second in seconds[_WARM_UP:]],
        "step / floor": [second / floor for second in seconds[_WARM_UP:]],
        **peak,
    }


def _lists(proof: Proof) -> list[TrainingList]:
    """Lists of twenty random passages of different lengths, for all steps."""
    draw, longest = random.Random(0), 8 if proof.is_tiny else 120

    def text() -> str:
        return "".join(draw.choices("etaoinshrdlu ", k=draw.randint(longest // 2, longest)))

    relevance = tuple(map(float, range(PASSAGES)))
    return [
        TrainingList(Query(text(), str(number)), tuple(Passage(str(n), text()) for n in range(PASSAGES)), relevance)
        for number in range(_STEPS * _WINDOWS)
    ]


class _Clock(TrainerCallback):
    """Keeps the time of each step of a training, after the device has finished."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._times = device, list[float]()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._times.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in itertools.pairwise(self._times)]


_OBJECTIVE = FirstObjective("joint", rank_loss_named("weighted-ranknet"), 10.0, tuple(range(PASSAGES)))


def _batch(proof: Proof) -> dict[str, torch.Tensor]:
    """Two windows of random tokens, whose last ones are the answer."""
    torch.manual_seed(0)
    ids = torch.randint(proof.small.vocabulary, (2, 40 if proof.is_tiny else 2000))
    bracket = ids.shape[1] - 10
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
    """The loss, and the length of its gradient."""
    loss = _OBJECTIVE.loss(model, batch)
    loss.backward()
    length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return loss.item(), length.item()
