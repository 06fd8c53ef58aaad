"""Training commands: flags from dataclasses and from transformers' Trainer, and one process or several.

torch and transformers are imported after the flags are parsed, so that --help and errors in flags are quick.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from rerank.commands.app import UNDERSCORES_TOO, Command, CommandApp, flags
from rerank.commands.run import console, quiet_libraries, run
from rerank.errors import RerankError
from rerank.util.files import check_inputs
from rerank.util.terminal import EscapingFormatter
from rerank_training.trainer.flags import RunFlags

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments

R = TypeVar("R")

#: Arguments that are paths of files or folders that a training reads.
_INPUTS = ("lists", "eval_lists", "qrels", "queries", "index", "config")
#: Values of flags without a value.
_BOOLEANS = {"true": True, "false": False}
_MORE_HELP = """The flags of transformers' Trainer are accepted as well, such as --optim adafactor;
--help-all shows them. A flag without a value may have true or false as its value."""


def training(
    arguments_type: type, run_flags_type: type[RunFlags] = RunFlags, *, example: str
) -> Callable[[Callable[[Any, RunArguments], object]], partial[None]]:
    """Decorates a function of arguments and RunArguments: it becomes a training command.

    The flags are the fields of both dataclasses, and all other fields of transformers' TrainingArguments.

    Args:
        arguments_type: dataclass with the arguments of this training.
        run_flags_type: dataclass with the flags of a run and their defaults.
        example: commands that --help shows.
    """

    def decorate(train: Callable[[Any, RunArguments], object]) -> partial[None]:
        def command(arguments: Any, run_flags: RunFlags, others: Any = None) -> object:
            if "torch" not in sys.modules:  # if torch is imported already, the training itself reports a missing file
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
    """A command that adds the options of transformers' Trainer when one of them, or --help-all, is given.

    `obj` of its context is a function: dataclasses with more flags → application.
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
            if option and option.is_flag and not word.startswith("-") and word.lower() not in _BOOLEANS:
                raise typer.BadParameter(f"expected true, false or no value, given {word!r}", ctx, option)
            if option and option.is_flag and word.lower() in _BOOLEANS:
                read[-1] = option.opts[0] if _BOOLEANS[word.lower()] else option.secondary_opts[0]
            else:
                read.append(word)
        return super().parse_args(ctx, ["--help"] if "--help-all" in args else read)

    def _options(self, ctx: Any) -> dict[str, Any]:
        return {name: option for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}


def _name(word: str) -> str:
    """The flag of a word on the command line, without a value after =, and with hyphens for underscores."""
    return word.partition("=")[0].replace("_", "-")


class LostProcess(RerankError):
    """Another process of the same training has ended, and this process cannot continue alone."""


def run_training(command: Callable[[], object]) -> None:
    """Runs a command as `rerank.commands.run.run` does. If there are several processes, only the first one logs.

    Launchers such as torchrun set the environment variable RANK to the number of the process.
    """
    is_first = is_first_process()
    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if is_first else logging.ERROR, handlers=[handler])
    quiet_libraries()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of each model whose parameters are all used
    warnings.simplefilter("ignore", FutureWarning)  # for developers: what libraries will rename
    console.quiet = not is_first
    try:
        run(command)
    except SystemExit as ended:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        end_process(ended.code)


def end_process(code: object) -> NoReturn:
    """Ends one of several processes without finalizing the interpreter, in which threads of gloo may abort the process.

    The threads run on after destroy_process_group while a DDP or FSDP model refers to the process group. A thread with
    tensors of the last collective needs the interpreter to free them (pytorch/pytorch#179291).
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a stream that the caller closed is None
        stream.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


def is_first_process() -> bool:
    """True in the only process of a training, and in the first of several."""
    return os.environ.get("RANK", "0") == "0"


def report_lost_process(train: Callable[[], R]) -> R:
    """Calls `train` and returns its result.

    Raises:
        LostProcess: the connection to another process is lost, for which torch raises several exceptions.
    """
    try:
        result = train()
        end_process_group()
        return result
    except RuntimeError as error:
        from rerank_training.trainer.processes import is_lost_process  # imports torch, which --help does not need

        if not is_lost_process(error):
            raise
        raise LostProcess(
            f"process {os.environ.get('RANK')} lost the connection to another training process, which has ended: see "
            f"its message ({error}); give the same command again, which resumes from the last save"
        ) from error


def end_process_group() -> None:
    """Ends the process group in all processes at once, because the end of one could abort those that still use it."""
    import torch.distributed  # not needed by --help

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
