"""Runs a training command in one process, or in one of several."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn, TypeVar

from rerank.commands.run import console, quiet_libraries, run
from rerank.errors import RerankError
from rerank.util.terminal import VisibleFormatter

R = TypeVar("R")


class LostProcess(RerankError):
    """Another process of the same training has ended, and this one cannot go on alone."""


def run_training(command: Callable[[], object]) -> None:
    """Runs a command as `rerank.commands.run.run` does. Of several processes, only the first logs and shows progress.

    The launcher gives the number of the process as the environment variable RANK.
    """
    is_first = is_first_process()
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if is_first else logging.ERROR, handlers=[handler])
    quiet_libraries()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of each model whose parameters are all used
    warnings.simplefilter("ignore", FutureWarning)  # they tell authors of code what libraries will rename
    console.quiet = not is_first
    try:
        run(command)
    except SystemExit as ended:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        end_process(ended.code)


def end_process(code: object) -> NoReturn:
    """Ends this process of several without finalizing the interpreter, because threads of gloo may abort it there.

    While a DDP or FSDP model refers to the process group, its threads go on after destroy_process_group. One that still
    holds tensors of the last collective needs the interpreter to free them (pytorch/pytorch#179291).
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a stream that the caller closed is None
        stream.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


def is_first_process() -> bool:
    """True for the only process of a training, and for the first of several."""
    return os.environ.get("RANK", "0") == "0"


def report_lost_process(train: Callable[[], R]) -> R:
    """Trains and returns the result. Raises: LostProcess instead of torch's exceptions about a lost connection."""
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
    """Ends the process group in all processes at once, because one whose peer has ended too early may be aborted."""
    import torch.distributed  # not needed by --help

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
