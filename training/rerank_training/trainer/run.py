"""One training run in one folder: starts it or resumes it after a kill, and logs speed and remaining time."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from torch.utils.data import Dataset, Subset
from transformers import IntervalStrategy, PrinterCallback, ProgressCallback, TrainerCallback

from rerank.errors import ConfigError
from rerank.files import atomic_file
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import report_write_errors
from rerank_training.trainer.ranking_trainer import COMPLETE_MARKER, RankingTrainer

_ARGUMENTS_FILE = "arguments.json"
_RESULT = "final"
#: Arguments that a resumed run may change, because they depend on the machine or the folder.
_MACHINE_ARGUMENTS = {"output_dir", "logging_dir", "run_name", "dataloader_pin_memory"}
_LOGGED = {"loss", "learning_rate", "eval_nDCG@10"}


def result_folder(output_dir: str) -> Path:
    """The folder of the run's trained checkpoint. Creates the folder of the run.

    Raises:
        ConfigError: the run is finished already, or its folder cannot be created.
    """
    folder = Path(output_dir) / _RESULT
    if folder.exists():
        raise ConfigError(f"{folder} exists: that run is finished; choose another --output-dir or remove it")
    with report_write_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def passes_needed(settings: RunArguments, items: int) -> int:
    """Number of passes over the items that a run makes, rounded up. The dataset of the run holds all of them."""
    needed = (
        settings.max_steps * _items_per_step(settings) if settings.max_steps > 0 else settings.num_train_epochs * items
    )
    return math.ceil(needed / items)


def _items_per_step(settings: Any) -> int:
    return int(settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size)


def select_checkpoint(settings: RunArguments, held_out: bool) -> None:
    """Configures which save becomes the result: with held-out lists the one of best nDCG@10, otherwise the last."""
    if not held_out:
        settings.eval_strategy = IntervalStrategy.NO
        return
    settings.eval_strategy = settings.save_strategy = IntervalStrategy.STEPS
    settings.load_best_model_at_end, settings.metric_for_best_model, settings.greater_is_better = True, "nDCG@10", True


def train(trainer: RankingTrainer, arguments: Sequence[Any]) -> dict[str, float]:
    """Trains to the end, from the last complete save if there is one, and returns the metrics of the selected save.

    Args:
        trainer: its dataset holds all passes, so that a resumed run skips the items it has seen.
        arguments: the dataclasses of the command; a run that was started with other arguments is not resumed.

    Raises:
        ConfigError: the folder holds a run with other arguments, or cannot be written to.
    """
    folder = Path(str(trainer.args.output_dir))
    with report_write_errors(folder):
        check_same_run(folder, arguments)
    trainer.args.num_train_epochs = 1
    if trainer.args.max_steps > 0:  # not one step more when a run resumes that was killed after its last step
        steps = range(trainer.args.max_steps * _items_per_step(trainer.args))
        trainer.train_dataset = Subset(cast("Dataset[Any]", trainer.train_dataset), steps)
    for callback in (PrinterCallback, ProgressCallback):
        if callback is PrinterCallback or not sys.stderr.isatty():
            trainer.remove_callback(callback)
    trainer.add_callback(SpeedLog())
    trainer.train(resume_from_checkpoint=last_save(folder))
    return {} if trainer.eval_dataset is None else trainer.evaluate()


def last_save(folder: Path) -> str | None:
    """The newest complete save of a run. Removes incomplete ones."""
    found = [(re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in folder.iterdir()]
    saves = {int(match[1]): path for match, path in found if match}
    for path in saves.values():
        if not (path / COMPLETE_MARKER).is_file():
            shutil.rmtree(path)
    complete = [step for step, path in saves.items() if path.exists()]
    return str(saves[max(complete)]) if complete else None


def check_same_run(folder: Path, arguments: Sequence[Any]) -> None:
    """Stores the arguments of a new run. Raises: ConfigError when a resumed run has other arguments."""
    given = {key: str(value) for part in arguments for key, value in dataclasses.asdict(part).items()}
    given = {key: value for key, value in given.items() if key not in _MACHINE_ARGUMENTS}
    path = folder / _ARGUMENTS_FILE
    if not path.is_file():
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
        return
    stored = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(key for key in given if given[key] != stored.get(key))
    if changed:
        differences = "; ".join(f"--{key.replace('_', '-')} {stored.get(key)}, now {given[key]}" for key in changed)
        raise ConfigError(
            f"{folder} holds a run with other arguments ({differences}); give the same arguments to resume it, or "
            "another --output-dir"
        )


class SpeedLog(TrainerCallback):
    """Prints a line every `logging_steps` steps: loss, held-out nDCG@10, tokens per second, remaining time."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start_s = time.monotonic()
        self._first_step, self._first_tokens = state.global_step, state.num_input_tokens_seen

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        elapsed_s = max(time.monotonic() - self._start_s, 1e-9)
        steps = state.global_step - self._first_step
        left = timedelta(seconds=round(elapsed_s / steps * (state.max_steps - state.global_step))) if steps else "?"
        tokens_per_s = (int(state.num_input_tokens_seen) - int(self._first_tokens)) / elapsed_s
        shown = {key: value for key, value in (logs or {}).items() if key in _LOGGED}
        values = "  ".join(f"{key.removeprefix('eval_')} {value:.4g}" for key, value in shown.items())
        if values and state.is_world_process_zero:
            step = f"step {state.global_step:>6}/{state.max_steps}"
            print(f"{step}  {values}  {tokens_per_s:,.0f} tokens/s  {left} left", flush=True)
