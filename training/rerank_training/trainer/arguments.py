"""Arguments of a training run: those of transformers' Trainer, with this project's defaults."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from typing import Annotated, Any, cast, get_args, get_type_hints

import torch
from accelerate.utils import DistributedType
from transformers import TrainingArguments
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from rerank.errors import ConfigError
from rerank_training.trainer.flags import ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE, RunFlags
from rerank_training.trainer.trackers import problem_of_trackers


@dataclass
class RunArguments(RunFlags, TrainingArguments):  # type: ignore[misc]  # RunFlags has narrower types
    """transformers' TrainingArguments, FSDP included; the fields of RunFlags have its defaults.

    Raises:
        ConfigError: a tracker of `report_to` is not installed or has no login, FSDP has no GPUs, or DeepSpeed is set.
    """

    lr_scheduler_type: str = "cosine"
    logging_steps: float = 0.01
    include_num_input_tokens_seen: bool | str = True  # for the tokens/s of the log
    logging_nan_inf_filter: bool = False  # a loss that is not a number is shown, and no step waits for the GPU
    save_total_limit: int | None = 2

    def __post_init__(self) -> None:
        self.remove_unused_columns = False  # our datasets have windows, not columns
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # otherwise bf16 would ask for a GPU
        if self.deepspeed:
            raise ConfigError("--deepspeed: models are divided with --fsdp here; use that")
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.cuda.is_available()
        TrainingArguments.__post_init__(self)
        if self.device.type == "cuda" and self.tf32 is None:
            torch.set_float32_matmul_precision("high")  # TF32: the range of float32, with three bits more than bfloat16
        disable_progress_bar()  # each load and save of weights would leave a line on the terminal
        # It would warn that the model's configuration gets the PAD and BOS tokens of the tokenizer.
        logging.getLogger("transformers.trainer_utils").setLevel(logging.ERROR)
        if self.process_index:  # the first process logs the same
            set_verbosity_error()
        self._check_report_to()
        if self.fsdp and self.distributed_state.distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
            raise ConfigError(
                "--fsdp needs several processes with a GPU each; start them with torchrun, or leave --fsdp out"
            )

    def complete_learning_rate(
        self, has_adapter: bool, adapter_rate: float = ADAPTER_LEARNING_RATE, full_rate: float = WEIGHTS_LEARNING_RATE
    ) -> None:
        """Sets the learning rate if no flag has set it.

        Args:
            adapter_rate: default for the training of an adapter.
            full_rate: default for the training of all weights.
        """
        if self.learning_rate is None:
            self.learning_rate = adapter_rate if has_adapter else full_rate

    @property
    def device_name(self) -> str:
        """The device's name for `Encoder`: without the number that accelerate adds to CPUs, as in cpu:0."""
        return "cpu" if self.device.type == "cpu" else str(self.device)

    @property
    def items_per_step(self) -> int:
        """Number of training items, such as windows, in an optimizer step of all processes."""
        return int(self.train_batch_size * self.gradient_accumulation_steps * self.world_size)

    def items_needed(self, items: int) -> int:
        """Number of training items in all steps of the run; the dataset holds `items` per pass.

        The number of passes is rounded up, and the last step is completed with items of the next pass, so that every
        process gets the same number of full batches.
        """
        steps = math.ceil(math.ceil(self.num_train_epochs) * items / self.items_per_step)
        return self.items_per_step * (self.max_steps if self.max_steps > 0 else steps)

    def check_loads_whole_models(self, command: str) -> None:
        """Checks that every process loads all weights, which the encoder of this training needs.

        Raises:
            ConfigError: transformers would load the weights in one process only.
        """
        if (self.fsdp_plugin_args or {}).get("cpu_ram_efficient_loading"):
            raise ConfigError(
                f"{command} loads an encoder in every process, which cpu_ram_efficient_loading would leave empty in "
                "all but one; remove it from --fsdp-config"
            )

    def _check_report_to(self) -> None:
        trackers = cast(list[str], self.report_to)  # a list after TrainingArguments' own checks
        try:
            problem = problem_of_trackers(trackers)
        except (ValueError, RuntimeError, ImportError) as error:  # the tracker is unknown or not installed
            problem = str(error)
        if problem:
            raise ConfigError(f"--report-to {' '.join(trackers).strip()}: {' '.join(problem.split())}; or use none")


def run_arguments(flags: RunFlags, others: Any = None) -> RunArguments:
    """The arguments with the values of flags.

    Args:
        others: a `trainer_flags` dataclass, whose fields count unless they are None.

    Raises:
        ConfigError: transformers refuses a value.
    """
    given = {name: value for name, value in (vars(others) if others else {}).items() if value is not None}
    try:
        return RunArguments(**{**flags.unshown, **given, **asdict(flags)})
    except ValueError as error:  # transformers' own checks
        raise ConfigError(f"{error}; see --help") from error


def trainer_flags(ours: Collection[str]) -> type:
    """A dataclass with the fields of transformers' TrainingArguments that have no flag here, None by default.

    Mappings are given as texts in JSON, which TrainingArguments parses.

    Args:
        ours: the flags of the command, such as --max-steps.
    """
    hints = get_type_hints(TrainingArguments)
    others = []
    for setting in fields(TrainingArguments):
        if setting.init and f"--{setting.name.replace('_', '-')}" not in ours:
            types = (hints[setting.name], *get_args(hints[setting.name]))
            kind: Any = next((kind for kind in (bool, int, float) if kind in types), str)
            annotation = Annotated[kind | None, setting.metadata.get("help", "")]
            others.append((setting.name, annotation, field(default=None)))
    return make_dataclass("TrainerFlags", others)
