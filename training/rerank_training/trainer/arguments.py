"""Arguments of a training run: those of transformers' Trainer with the defaults of this project."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentError
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from transformers import HfArgumentParser, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks, is_tensorboard_available
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from rerank.errors import ConfigError
from rerank.names import did_you_mean
from rerank_training.trainer.flags import ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE, RunFlags


@dataclass
class RunArguments(RunFlags, TrainingArguments):  # type: ignore[misc]  # RunFlags has narrower types
    """transformers' TrainingArguments, FSDP and DeepSpeed included; the fields of RunFlags have its defaults.

    Raises:
        ConfigError: DeepSpeed or a tracker of `report_to` is not installed, or FSDP is asked for on a CPU.
    """

    def __post_init__(self) -> None:
        self.remove_unused_columns = False  # our datasets have windows, not columns
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # otherwise bf16 would ask for a GPU
        if self.deepspeed and find_spec("deepspeed") is None:
            raise ConfigError("--deepspeed: the package deepspeed is not installed; install it, or use --fsdp")
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.cuda.is_available()
        TrainingArguments.__post_init__(self)
        if self.process_index:  # the others say the same
            disable_progress_bar()
            set_verbosity_error()
        self._check_report_to()
        if self.fsdp and self.use_cpu:
            raise ConfigError("--fsdp needs GPUs: on a CPU, every process would hold the whole model; leave --fsdp out")

    def complete_learning_rate(
        self, has_adapter: bool, of_adapter: float = ADAPTER_LEARNING_RATE, of_weights: float = WEIGHTS_LEARNING_RATE
    ) -> None:
        """Sets the learning rate that no flag gave: adapters learn with a higher one than all weights."""
        if self.learning_rate is None:
            self.learning_rate = of_adapter if has_adapter else of_weights

    def check_not_sharded(self, command: str) -> None:
        """Raises: ConfigError when the weights are to be divided among processes."""
        if self.fsdp or self.deepspeed:
            raise ConfigError(
                f"{command} does not write a model that --fsdp or --deepspeed divides among processes; leave them out, "
                "and use --lora-rank for a base that does not fit into one GPU's memory with all weights trained"
            )

    def _check_report_to(self) -> None:
        try:
            get_reporting_integration_callbacks(self.report_to)
        except (ValueError, RuntimeError) as error:  # unknown, or not installed
            raise ConfigError(f"--report-to {' '.join(self.report_to)}: {error}; or use none") from error
        if "tensorboard" in self.report_to and not is_tensorboard_available():
            raise ConfigError(
                "--report-to tensorboard: tensorboard is not installed; install rerank-listwise[train], or use none"
            )


def run_arguments(flags: RunFlags, others: Sequence[str], ours: Collection[str]) -> RunArguments:
    """The arguments of a run: those of our flags, and of further flags that only TrainingArguments has.

    Args:
        others: flags and values as on the command line.
        ours: the names of all our flags, for the message of an unknown one.

    Raises:
        ConfigError: a flag is unknown, or transformers refuses a value.
    """
    parser = _trainer_parser()
    try:
        inherited, unknown = parser.parse_known_args(others)
        if unknown:
            flag = unknown[0].partition("=")[0]
            theirs = (name for action in parser._actions for name in action.option_strings)
            meant = did_you_mean(flag, [*ours, *theirs])
            raise ConfigError(f"{flag} is not a flag of this command;{meant} see --help")
        return RunArguments(**(vars(inherited) | asdict(flags)))
    except (ArgumentError, ValueError) as error:  # transformers' own checks
        raise ConfigError(f"{error}; see --help") from error


def trainer_help(ours: Collection[str]) -> str:
    """The flags of transformers' TrainingArguments that are not among ours, with their help."""
    parser = _trainer_parser()
    for action in parser._actions:
        if set(ours) & set(action.option_strings):
            action.help = SUPPRESS
    return parser.format_help()


def _trainer_parser() -> HfArgumentParser:
    parser = HfArgumentParser(cast(Any, TrainingArguments), add_help=False, allow_abbrev=False, exit_on_error=False)
    for action in parser._actions:
        action.option_strings = [flag for flag in action.option_strings if "_" not in flag]
    return parser
