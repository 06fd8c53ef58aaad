"""Applications of the training commands: flags from dataclasses, from a YAML file, and for transformers' Trainer.

Neither --help nor the message of a wrong flag of ours waits for the import of torch and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from rerank.commands.app import Command, CommandApp
from rerank.commands.flags import flags
from rerank.errors import ConfigError
from rerank.util.yaml_files import read_yaml
from rerank_training.trainer.command import report_lost_process, say_how_to_go_on
from rerank_training.trainer.flags import RunFlags

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MORE_HELP = """--help-all shows the flags of transformers' Trainer too, which are accepted as well. --config FILE reads
flags from a YAML file; flags override it. A flag with two forms may have true or false as its value instead."""


def training_app(
    arguments_type: type, run_flags_type: type[RunFlags] = RunFlags, *, example: str
) -> Callable[[Callable[..., object]], CommandApp]:
    """Turns a function of arguments and RunArguments into the application of a training command.

    Its flags are the fields of both dataclasses, and all others of transformers' TrainingArguments.

    Args:
        arguments_type: dataclass with the arguments of this training.
        run_flags_type: dataclass with the flags of a run and their defaults.
        example: commands that --help shows.
    """

    def decorate(train: Callable[..., object]) -> CommandApp:
        def command(arguments: Any, run_flags: RunFlags, other: _OtherFlags) -> object:
            from rerank_training.trainer.arguments import run_arguments  # imports torch and transformers

            ours = [f"--{setting.name.replace('_', '-')}" for setting in fields(arguments)]
            with say_how_to_go_on(run_flags.output_dir):
                return report_lost_process(lambda: train(arguments, run_arguments(run_flags, other.flags, ours)))

        command.__doc__ = f"{train.__doc__}\n\n{_MORE_HELP}"
        app = CommandApp()
        app.command(example=example, cls=_TrainingCommand)(flags(arguments_type, run_flags_type, _OtherFlags)(command))
        return app

    return decorate


@dataclass(frozen=True)
class _OtherFlags:
    """Flags that are no field of our dataclasses, with their values."""

    flags: Annotated[list[str], typer.Argument(hidden=True, metavar="--TRAINER-FLAG VALUE")] = field(
        default_factory=list
    )


class _TrainingCommand(Command):
    """A command that reads flags from a YAML file too, and takes any others as its argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = _by_flag(args)
        if "--config" in given:
            given = _flags_in(Path(" ".join(given.pop("--config")))) | given
        options = {name: option for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}
        if "--help-all" in given:
            from rerank_training.trainer.arguments import trainer_help  # imports torch and transformers

            print(ctx.get_help(), trainer_help(options), sep="\n\n")
            ctx.exit()
        ours = [word for flag in given if flag in options for word in _words(flag, given[flag], options[flag])]
        others = [word for flag in given if flag not in options for word in (flag, *given[flag])]
        return super().parse_args(ctx, [*ours, "--", *others])


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each flag; of equal flags, the last counts. A flag may be written with underscores."""
    given: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--") or not given:
            name, equals, value = word.partition("=")
            values = [value] if equals else []
            given[name.replace("_", "-")] = values
        else:
            values.append(word)
    return given


def _flags_in(path: Path) -> dict[str, list[str]]:
    """The flags in a YAML file, with their values."""
    settings = read_yaml(path).content or {}
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(settings).__name__}")
    values = {
        key: value if isinstance(value, list) else [value] for key, value in settings.items() if value is not None
    }
    return {f"--{key}".replace("_", "-"): [_text(part) for part in parts] for key, parts in values.items()}


def _text(value: Any) -> str:
    """A value of a YAML file as on the command line."""
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _words(flag: str, values: Sequence[str], option: Any) -> list[str]:
    """A flag of ours and its values as click reads them: `--x true` is --x, `--x false` is --no-x."""
    if option.is_flag and values:
        if values[0].lower() not in _TRUTH:
            raise ConfigError(f"{flag} {values[0]}: neither true nor false; see --help")
        return [flag if _TRUTH[values[0].lower()] else option.secondary_opts[0], *values[1:]]
    if option.multiple:
        return [f"{flag}={value}" for value in values] or [flag]
    return [f"{flag}={values[0]}", *values[1:]] if values else [flag]
