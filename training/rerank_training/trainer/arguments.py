"""Command-line flags and YAML files of the trainings, parsed into dataclasses."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from rerank.errors import ConfigError

#: Largest number of passages in a window, without a flag and without a manifest of the base.
WINDOW_SIZE = 20
#: Flags of transformers that `--help` shows among ours.
_COMMON = {
    *("max_steps", "num_train_epochs", "gradient_accumulation_steps", "gradient_checkpointing", "weight_decay"),
    *("seed", "per_device_eval_batch_size", "use_cpu", "fsdp", "deepspeed"),
}


@dataclass
class RunArguments(TrainingArguments):
    """transformers' TrainingArguments, FSDP and DeepSpeed included, with the defaults of this project."""

    output_dir: str = field(metadata={"help": "Folder of the run; the trained checkpoint is in its folder `final`."})
    learning_rate: float = field(default=2e-5, metadata={"help": "Peak learning rate."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Learning rate schedule after the warm-up."})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Length of the warm-up in steps; a number below 1 is a share of all steps."}
    )
    per_device_train_batch_size: int = field(default=4, metadata={"help": "Windows per step and device."})
    logging_steps: float = field(
        default=10, metadata={"help": "Steps between two log lines with loss, speed and remaining time."}
    )
    save_steps: float = field(
        default=200, metadata={"help": "Steps between two saves; a killed run resumes from the last one."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Saves to keep besides the best one."})
    eval_steps: float | None = field(
        default=200, metadata={"help": "Steps between two evaluations on the held-out lists."}
    )
    bf16: bool = field(default=False, metadata={"help": "Train in mixed precision with bfloat16."})
    include_num_input_tokens_seen: bool = field(
        default=True, metadata={"help": "Count the input tokens, padding included; the logged tokens/s need it."}
    )
    report_to: list[str] = field(
        default_factory=lambda: ["tensorboard"],
        metadata={"help": "Experiment trackers: tensorboard, wandb, … or none. Several are separated by spaces."},
    )

    def __post_init__(self) -> None:
        self.remove_unused_columns = False  # our datasets have windows, not columns
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.cuda.is_available()
        super().__post_init__()
        self._check_report_to()

    def _check_report_to(self) -> None:
        from transformers.integrations.integration_utils import (  # --help skips it
            get_reporting_integration_callbacks,
            is_tensorboard_available,
        )

        try:
            get_reporting_integration_callbacks(self.report_to)
        except (ValueError, RuntimeError) as error:  # unknown, or not installed
            raise ConfigError(f"--report-to {' '.join(self.report_to)}: {error}; or use none") from error
        if "tensorboard" in self.report_to and not is_tensorboard_available():
            raise ConfigError(
                "--report-to tensorboard: tensorboard is not installed; install rerank-listwise[train], or use none"
            )


@dataclass(kw_only=True)
class ListArguments:
    """Arguments about training lists and windows, for trainings that read such lists."""

    lists: str = field(
        metadata={"help": "Training lists: JSONL of build-lists, published conversations, or requests with --qrels."}
    )
    eval_lists: str | None = field(
        default=None,
        metadata={"help": "Held-out lists. The save with the best nDCG@10 on them is the result; otherwise the last."},
    )
    qrels: str | None = field(
        default=None, metadata={"help": "Judgements in TREC format, for lists that are RankLLM requests."}
    )
    max_bad_share: float = field(default=0.01, metadata={"help": "Accepted share of invalid lines in the lists, 0-1."})
    window_size: int = field(
        default=0,
        metadata={
            "help": "Largest number of passages in a window; 0: that of the base if it has a manifest, otherwise "
            f"{WINDOW_SIZE}."
        },
    )
    min_window_size: int = field(
        default=0, metadata={"help": "Smallest number of passages in a window; 0: the same as --window-size."}
    )
    shuffled_share: float = field(default=0.5, metadata={"help": "Share of windows in random order, 0-1."})


class _Parser(HfArgumentParser):
    """Shows flags with hyphens only; the spelling with underscores is accepted too.

    `--help` shows the flags of this project and those of transformers that most runs need, `--help-all` shows all.
    """

    def __init__(self, types: Sequence[Any], **options: Any) -> None:
        super().__init__(types, **options)
        for action in self._actions:
            action.option_strings = [flag for flag in action.option_strings if "_" not in flag]

    def hide_inherited(self, types: Sequence[type]) -> None:
        """Leaves the flags out of `--help` that transformers' TrainingArguments define and few runs need."""
        redefined = {name for part in types for base in _project_bases(part) for name in base.__annotations__}
        inherited = {setting.name for setting in dataclasses.fields(TrainingArguments)}
        for action in self._actions:
            if action.dest in inherited - redefined - _COMMON:
                action.help = SUPPRESS

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def parse_arguments(
    types: Sequence[Any], arguments: Sequence[str] | None = None, description: str | None = None
) -> tuple[Any, ...]:
    """Parses flags, and the YAML file of `--config FILE`, into one instance of each dataclass. Flags override the file.

    Args:
        types: dataclasses whose fields are the flags.
        arguments: None: those of the process.
        description: of the command, for --help; only its first line is shown.

    Raises:
        ConfigError: a flag or key is unknown or missing, or a value cannot be parsed.
    """
    config_parser = _Parser([], add_help=False, allow_abbrev=False)
    config_parser.add_argument("--config", type=Path)
    config_parser.add_argument("--help-all", action="store_true")
    known, flags = config_parser.parse_known_args(sys.argv[1:] if arguments is None else list(arguments))
    if known.help_all:
        flags = ["--help"]
    if known.config is not None:
        flags = [*_flags_of(known.config), *flags]  # the last of two equal flags wins
    parser = _Parser(
        types,
        allow_abbrev=False,
        description=description and description.partition("\n")[0],
        epilog="--help-all shows the flags of transformers' Trainer too, which are accepted as well. --config FILE "
        "reads flags from a YAML file; flags override it.",
    )
    if not known.help_all:
        parser.hide_inherited(types)
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(
            flags, return_remaining_strings=True, look_for_args_file=False
        )
    except ValueError as error:  # transformers' own checks
        raise ConfigError(f"{error}; see --help") from error
    if unknown:
        raise ConfigError(f"{unknown[0].partition('=')[0]} is not a flag of this command; see --help")
    return tuple(parsed)


def _project_bases(part: type) -> Iterator[type]:
    """The dataclass and those of its bases that are classes of this project."""
    return (base for base in part.__mro__ if dataclasses.is_dataclass(base) and not issubclass(TrainingArguments, base))


def _flags_of(path: Path) -> Iterator[str]:
    """The keys and values of a YAML file as command-line flags."""
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
