"""Flags and YAML files → dataclasses. A flag beats the file; a key that nothing reads is an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from rerank.errors import ConfigError


@dataclass
class RunArguments(TrainingArguments):
    """transformers' own arguments, with the defaults of this project; so FSDP, DeepSpeed and many GPUs are theirs."""

    output_dir: str = field(metadata={"help": "Folder of the run; the result is in its `final`."})
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "How the learning rate falls."})
    warmup_steps: float = field(default=50, metadata={"help": "Steps of rising learning rate; below 1: a share."})
    per_device_train_batch_size: int = field(default=4, metadata={"help": "Windows a step and device."})
    logging_steps: float = field(default=10, metadata={"help": "Steps between two lines."})
    save_steps: float = field(default=200, metadata={"help": "Steps between two saves; a killed run resumes there."})
    save_total_limit: int | None = field(default=2, metadata={"help": "How many saves are kept beside the best."})
    eval_steps: float | None = field(default=200, metadata={"help": "Steps between two evaluations."})
    bf16: bool = field(default=False, metadata={"help": "Mixed precision in bfloat16."})
    include_num_input_tokens_seen: bool = field(
        default=True, metadata={"help": "Count tokens, padding included, for tokens a second."}
    )
    report_to: list[str] = field(
        default_factory=lambda: ["tensorboard"], metadata={"help": "tensorboard, wandb, … or none."}
    )

    def __post_init__(self) -> None:
        self.remove_unused_columns = False  # batches are made of windows, not of columns
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.cuda.is_available()
        super().__post_init__()
        try:
            get_reporting_integration_callbacks(self.report_to)
        except (ValueError, RuntimeError) as error:  # unknown, or not installed
            raise ConfigError(f"report_to {' '.join(self.report_to)}: {error}; or use none") from error


class _Parser(HfArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def parse_arguments(types: Sequence[Any], arguments: Sequence[str] | None = None) -> tuple[Any, ...]:
    """One instance of each dataclass in `types`, from `--config FILE` (YAML) and flags.

    Raises:
        ConfigError: an unknown key or flag, a value that cannot be read, or one that is missing.
    """
    files = _Parser(add_help=False, allow_abbrev=False)
    files.add_argument("--config", type=Path)
    given, flags = files.parse_known_args(sys.argv[1:] if arguments is None else list(arguments))
    if given.config is not None:
        flags = [*_flags_of(given.config), *flags]  # of two flags the last one counts
    parser = _Parser(list(types), allow_abbrev=False, epilog="--config FILE: YAML of these; flags win.")
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            flags, return_remaining_strings=True, look_for_args_file=False
        )
    except ValueError as error:  # transformers' own checks
        raise ConfigError(f"{error}; see --help") from error
    if unknown:
        raise ConfigError(f"{unknown[0].partition('=')[0]} is no argument of this command; see --help")
    return tuple(parsed)


def _flags_of(path: Path) -> Iterator[str]:
    """The file's keys and values as flags."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(settings).__name__}")
    for key, value in settings.items():
        if isinstance(value, list):
            yield from (f"--{key}", *map(str, value))
        elif value is not None:
            yield f"--{key}={json.dumps(value) if isinstance(value, dict) else value}"
