"""Command-line flags and YAML files of the trainings, parsed into dataclasses.

Neither --help nor the message of a wrong flag of ours waits for the import of torch and transformers.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from rerank.commands.app import example_in, example_text
from rerank.errors import ConfigError
from rerank.yaml_files import read_yaml

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments

#: Peak learning rates without a flag; docs/log.md has the measurement.
ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE = 5e-4, 5e-5
_SHARE = "a number below 1 is a share of all steps"
#: Largest number of passages in a window, without a flag and without a manifest of the base.
WINDOW_SIZE = 20
#: The keys of `rerank_training.trainer.losses.RANK_LOSSES`, which needs torch.
RANK_LOSS_NAMES = (
    *("ranknet", "weighted-ranknet", "lambdarank", "listnet", "lambdarank-first", "listnet-first", "listmle"),
    *("p-listmle", "approx-rank-mse", "kl", "margin-mse"),
)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

Arguments = TypeVar("Arguments")


@dataclass
class RunFlags:
    """The flags of a training run that --help shows: fields of transformers' TrainingArguments with our defaults.

    `RunArguments` has these fields and all others of TrainingArguments.
    """

    output_dir: str = field(metadata={"help": "Folder of the run; the trained checkpoint is in its folder `final`."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Number of passes over the training lists."})
    max_steps: int = field(
        default=-1, metadata={"help": "Number of optimizer steps, instead of --num-train-epochs; -1: not set."}
    )
    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": f"Peak learning rate. Default: {ADAPTER_LEARNING_RATE:g} for an adapter (LoRA), "
            f"{WEIGHTS_LEARNING_RATE:g} for all weights."
        },
    )
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Learning rate schedule after the warm-up."})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Length of the warm-up in steps; a number below 1 is a share of all steps."}
    )
    weight_decay: float = field(default=0.0, metadata={"help": "Weight decay of AdamW."})
    per_device_train_batch_size: int = field(default=4, metadata={"help": "Windows per step and device."})
    per_device_eval_batch_size: int = field(
        default=8, metadata={"help": "Windows per forward pass and device in an evaluation."}
    )
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "Number of batches whose gradients an optimizer step sums up."}
    )
    gradient_checkpointing: bool | None = field(
        default=None, metadata={"help": "Compute activations again in the backward pass: slower, with less memory."}
    )
    bf16: bool = field(
        default=False, metadata={"help": "Train in mixed precision with bfloat16; frozen weights are kept in it."}
    )
    torch_compile: bool = field(
        default=False, metadata={"help": "Compile the model with torch.compile; on a CPU this needs a C++ compiler."}
    )
    logging_steps: float = field(
        default=0.01,
        metadata={"help": f"Steps between two log lines with loss, speed and remaining time; {_SHARE}."},
    )
    include_num_input_tokens_seen: bool = field(
        default=True, metadata={"help": "Count the input tokens, padding included; the logged tokens/s need it."}
    )
    report_to: list[str] = field(
        default_factory=lambda: ["tensorboard"],
        metadata={"help": "Experiment trackers: tensorboard, wandb, … or none. Several are separated by spaces."},
    )
    eval_steps: float | None = field(
        default=0.1, metadata={"help": f"Steps between two evaluations on the held-out lists; {_SHARE}."}
    )
    save_steps: float = field(
        default=0.1, metadata={"help": f"Steps between two saves; {_SHARE}. A killed run resumes from the last one."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Saves to keep besides the best one."})
    seed: int = field(default=42, metadata={"help": "Seed of the windows, of new weights and of dropout."})
    use_cpu: bool = field(default=False, metadata={"help": "Train on the CPU although there is a GPU."})
    fsdp: bool | None = field(
        default=None,
        metadata={"help": "Divide weights among the GPUs (PyTorch's FSDP2); --fsdp-config FILE has its options."},
    )
    deepspeed: str | None = field(default=None, metadata={"help": "JSON configuration of the package deepspeed."})


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


def parse_arguments(
    arguments_type: type[Arguments],
    run_flags_type: type[RunFlags] = RunFlags,
    flags: Sequence[str] | None = None,
    description: str | None = None,
) -> tuple[Arguments, RunArguments]:
    """Parses flags, and the YAML file of `--config FILE`, into dataclasses. Flags override the file.

    Flags with underscores instead of hyphens are accepted as well. Transformers is imported when our own flags are
    valid.

    Args:
        arguments_type: dataclass whose fields are the flags of one command.
        run_flags_type: dataclass with the flags of the run and their defaults.
        flags: None: those of the process.
        description: docstring of the command's module, of which --help shows the first line and the example.

    Raises:
        ConfigError: a flag or key is unknown or missing, or a value cannot be parsed.
    """
    config_parser = _Parser(add_help=False, allow_abbrev=False)
    config_parser.add_argument("--config", type=Path)
    config_parser.add_argument("--help-all", action="store_true")
    known, flags = config_parser.parse_known_args(sys.argv[1:] if flags is None else list(flags))
    if known.config is not None:
        flags = [*_flags_of(known.config), *flags]  # the last of two equal flags wins
    parents = [_trainer_parser()] if known.help_all else []
    parser = _parser((arguments_type, run_flags_type), description, parents)
    if known.help_all:
        parser.print_help()
        sys.exit(0)
    ours, others = _split_flags(flags, parser)
    values, unknown = parser.parse_known_args(ours)
    _refuse(unknown)
    arguments = arguments_type(**_values_of(arguments_type, values))
    return arguments, _run_arguments(_values_of(run_flags_type, values), others)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def _parser(parts: Sequence[type], description: str | None, parents: Sequence[ArgumentParser]) -> ArgumentParser:
    """The parser of the fields of dataclasses, which replace flags of the parents with the same names."""
    parser = _Parser(
        allow_abbrev=False,
        conflict_handler="resolve",
        parents=parents,
        description=description and description.partition("\n")[0],
        formatter_class=RawDescriptionHelpFormatter,
        epilog="--help-all shows the flags of transformers' Trainer too, which are accepted as well.\n"
        f"--config FILE reads flags from a YAML file; flags override it.\n\n{example_text(example_in(description))}",
    )
    for part in parts:
        types_of = get_type_hints(part)
        for setting in dataclasses.fields(part):
            _add_flag(parser, setting, types_of[setting.name])
    return parser


def _add_flag(parser: ArgumentParser, setting: dataclasses.Field[Any], type_: Any) -> None:
    if NoneType in get_args(type_):  # X | None
        type_ = next(part for part in get_args(type_) if part is not NoneType)
    flag, text = f"--{setting.name.replace('_', '-')}", setting.metadata["help"]
    default = setting.default if setting.default_factory is dataclasses.MISSING else setting.default_factory()
    options: dict[str, Any] = {"dest": setting.name, "help": text}
    if default is dataclasses.MISSING:
        options["required"] = True
    else:
        shown = " ".join(default) if isinstance(default, list) else str(default).lower()
        options |= {"default": default, "help": f"{text} (default: {shown})" if default not in (None, "") else text}
    if type_ is bool:
        options |= {"type": _truth, "nargs": "?", "const": True, "metavar": "true|false"}
    elif get_origin(type_) is Literal:
        options |= {"choices": get_args(type_)}
    elif get_origin(type_) is list:
        options |= {"nargs": "+"}
    else:
        options |= {"type": type_, "metavar": {int: "INTEGER", float: "NUMBER"}.get(type_, "TEXT")}
    parser.add_argument(flag, **options)


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return _TRUTH[text.lower()]


def _split_flags(flags: Sequence[str], parser: ArgumentParser) -> tuple[list[str], list[str]]:
    """The flags that the parser knows and all others, both with their values and with hyphens for underscores."""
    known = {flag for action in parser._actions for flag in action.option_strings}
    ours: list[str] = []
    others: list[str] = []
    target = others
    for text in flags:
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            text = name.replace("_", "-") + equals + value
            target = ours if name.replace("_", "-") in known else others
        elif text == "-h":
            target = ours
        target.append(text)
    return ours, others


def _run_arguments(values: dict[str, Any], flags: Sequence[str]) -> RunArguments:
    """RunArguments with these values, and with those of further flags, which TrainingArguments defines."""
    from rerank_training.trainer.arguments import RunArguments  # imports torch and transformers

    try:
        inherited, unknown = _trainer_parser().parse_known_args(flags)
        _refuse(unknown)
        return RunArguments(**(vars(inherited) | values))
    except ValueError as error:  # transformers' own checks
        raise ConfigError(f"{error}; see --help") from error


def _trainer_parser() -> ArgumentParser:
    """The parser of transformers' TrainingArguments, for flags with hyphens."""
    from transformers import HfArgumentParser, TrainingArguments

    class TrainerParser(_Parser, HfArgumentParser):
        pass

    parser = TrainerParser(cast(Any, TrainingArguments), add_help=False, allow_abbrev=False)
    for action in parser._actions:
        action.option_strings = [flag for flag in action.option_strings if "_" not in flag]
    return parser


def _values_of(part: type, values: Namespace) -> dict[str, Any]:
    return {setting.name: getattr(values, setting.name) for setting in dataclasses.fields(part)}


def _refuse(unknown: Sequence[str]) -> None:
    if unknown:
        raise ConfigError(f"{unknown[0].partition('=')[0]} is not a flag of this command; see --help")


def _flags_of(path: Path) -> Iterator[str]:
    """The keys and values of a YAML file as command-line flags."""
    settings = read_yaml(path).content or {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(settings).__name__}")
    for key, value in settings.items():
        if isinstance(value, list):
            yield from (f"--{key}", *map(str, value))
        elif value is not None:
            yield f"--{key}={json.dumps(value) if isinstance(value, dict) else value}"
