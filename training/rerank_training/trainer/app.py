"""Applications of the training commands: flags from dataclasses, and transformers' Trainer's.

Neither --help nor a value of the wrong type waits for the import of torch and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from rerank.commands.app import Command, CommandApp
from rerank.commands.flags import UNDERSCORES_TOO, flags
from rerank.util.files import check_inputs
from rerank_training.trainer.command import report_lost_process, run_training
from rerank_training.trainer.flags import RunFlags

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments

#: Arguments with the paths of what a training reads.
_INPUTS = ("lists", "eval_lists", "qrels", "queries", "index", "config")
_TRUTH = {"true": True, "false": False}
_MORE_HELP = """The flags of transformers' Trainer are accepted as well, such as --optim adafactor;
--help-all shows them. A flag without a value may have true or false as its value."""


def training(
    arguments_type: type, run_flags_type: type[RunFlags] = RunFlags, *, example: str
) -> Callable[[Callable[[Any, RunArguments], object]], partial[None]]:
    """Turns a function of arguments and RunArguments into a training command, which runs an application.

    Its flags are the fields of both dataclasses, and all others of transformers' TrainingArguments.

    Args:
        arguments_type: dataclass with the arguments of this training.
        run_flags_type: dataclass with the flags of a run and their defaults.
        example: commands that --help shows.
    """

    def decorate(train: Callable[[Any, RunArguments], object]) -> partial[None]:
        def command(arguments: Any, run_flags: RunFlags, others: Any = None) -> object:
            if "torch" not in sys.modules:  # where it is imported already, the training itself says what is not there
                check_inputs(arguments, _INPUTS)
            from rerank_training.trainer.arguments import run_arguments  # imports torch and transformers

            return report_lost_process(lambda: train(arguments, run_arguments(run_flags, others)))

        def with_flags_of(*settings_types: type) -> CommandApp:
            app = CommandApp()
            context_settings = {**UNDERSCORES_TOO, "obj": with_flags_of}
            add = app.command(example=example, cls=_TrainingCommand, context_settings=context_settings)
            add(flags(arguments_type, run_flags_type, *settings_types)(command))
            return app

        command.__doc__ = f"{train.__doc__}\n\n{_MORE_HELP}"
        return partial(run_training, with_flags_of())

    return decorate


class _TrainingCommand(Command):
    """A command that has the options of transformers' Trainer as soon as one of them, or --help-all, is given.

    The object of its context is a function: dataclasses with more flags → application.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ours = self._options(ctx)
        if any(word.startswith("--") and _name(word) not in ours for word in args):
            from rerank_training.trainer.arguments import trainer_flags  # imports torch and transformers

            whole = typer.main.get_command(ctx.obj(trainer_flags(ours)))
            self.params, self.callback = whole.params, whole.callback
        options = self._options(ctx)
        read: list[str] = []
        for word in args:
            option = options.get(_name(read[-1])) if read else None
            if option and option.is_flag and word.lower() in _TRUTH:
                read[-1] = option.opts[0] if _TRUTH[word.lower()] else option.secondary_opts[0]
            else:
                read.append(word)
        return super().parse_args(ctx, ["--help"] if "--help-all" in args else read)

    def _options(self, ctx: Any) -> dict[str, Any]:
        return {name: option for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}


def _name(word: str) -> str:
    """The name of a flag, which may be written with underscores and with its value."""
    return word.partition("=")[0].replace("_", "-")
