"""Arguments of the trainings as their commands parse them."""

from typing import Any

import typer
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.command import training
from rerank_training.trainer.flags import RunFlags


def parse_arguments(
    arguments_type: type, *given: str, run_flags_type: type[RunFlags] = RunFlags
) -> tuple[Any, RunArguments]:
    """The arguments and the run's settings that the flags of a training command give."""
    (app,) = training(arguments_type, run_flags_type, example="train")(lambda *parsed: parsed).args
    parsed: tuple[Any, RunArguments] = typer.main.get_command(app).main([*given], standalone_mode=False)
    return parsed
