"""Flags that all trainings have, as dataclass fields. This file does not import torch, so that --help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

#: Default peak learning rates of an adapter and of all weights; docs/evidence/log.md has the measurement.
ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE = 5e-4, 5e-5
#: The end of the help of numbers of steps.
_SHARE = "a number below 1 is a share of all steps"
#: Default of the largest number of passages in a window, for a base without a manifest.
WINDOW_SIZE = 20

#: Alpha of LoRA adapters: their change of a weight is scaled by alpha / rank (Hu et al. 2021).
LORA_ALPHA = 32

RankLossName = Annotated[
    str, "Ranking loss, such as ranknet, listmle or kl; an unknown name is answered with all names."
]


def learning_rates(adapter_rate: float, full_rate: float) -> str:
    """The help of --learning-rate."""
    return f"Peak learning rate. Default: {adapter_rate:g} for an adapter (LoRA), {full_rate:g} for all weights."


@dataclass
class RunFlags:
    """The flags of a training run that --help shows: fields of transformers' TrainingArguments with other defaults.

    `RunArguments` has these fields and all others of TrainingArguments, which --help-all shows.

    Attributes:
        unshown: name → default of a training for arguments that only --help-all shows.
    """

    unshown: ClassVar[Mapping[str, object]] = {}

    output_dir: Annotated[str, "Folder of the run; the trained checkpoint is in its folder `final`."]
    num_train_epochs: Annotated[float, "Number of passes over the training lists."] = 3.0
    max_steps: Annotated[int, "Number of optimizer steps, instead of --num-train-epochs; -1: not set."] = -1
    learning_rate: Annotated[float | None, learning_rates(ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE)] = None
    warmup_steps: Annotated[float, "Length of the warm-up in steps; a number below 1 is a share of all steps."] = 0.1
    per_device_train_batch_size: Annotated[int, "Windows per step and device."] = 4
    gradient_accumulation_steps: Annotated[int, "Number of batches in an optimizer step, on each device."] = 1
    gradient_checkpointing: Annotated[
        bool | None, "Compute activations again in the backward pass: slower, with less memory."
    ] = None
    bf16: Annotated[
        bool, "Train in mixed precision with bfloat16. Frozen weights are stored in it if that changes none of them."
    ] = False
    eval_steps: Annotated[float | None, f"Steps between two evaluations on the held-out lists; {_SHARE}."] = 0.1
    save_steps: Annotated[float, f"Steps between two saves; {_SHARE}. A killed run resumes from the last save."] = 0.1
    seed: Annotated[int, "Seed of the windows, of new weights and of dropout."] = 42
    use_cpu: Annotated[bool, "Train on the CPU although there is a GPU."] = False
    fsdp: Annotated[
        bool | None, "Divide weights among the GPUs (PyTorch's FSDP2); --fsdp-config FILE has its options."
    ] = None


@dataclass(kw_only=True)
class ListArguments:
    """Arguments about training lists and their windows."""

    lists: Annotated[str, "Training lists: JSONL of build-lists, published conversations, or requests with --qrels."]
    eval_lists: Annotated[
        str | None, "Held-out lists. The result is the save with the best nDCG@10 on them; without them, the last save."
    ] = None
    qrels: Annotated[str | None, "Judgements in TREC format, for lists that are RankLLM requests."] = None
    window_size: Annotated[
        int,
        f"Largest number of passages in a window; 0: the base's if it has a manifest, otherwise {WINDOW_SIZE}. It is "
        "lowered to the length of the longest list.",
    ] = 0
    min_window_size: Annotated[int, "Smallest number of passages in a window; 0: the same as --window-size."] = 0
    shuffled_share: Annotated[float, "Share of windows in random order, 0-1."] = 0.5
