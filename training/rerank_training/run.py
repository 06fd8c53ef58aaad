"""One training run in one folder: starts, or goes on where it was killed; says how fast it is and how long it takes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
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
from rerank_training.arguments import RunArguments
from rerank_training.checkpoint import naming_write_errors
from rerank_training.trainer import SAVED_WHOLE, RankingTrainer

_ARGUMENTS_FILE = "arguments.json"
_RESULT = "final"
#: What may differ when a run goes on: where it is, and what the machine is.
_OF_THE_PLACE = {"output_dir", "logging_dir", "run_name", "dataloader_pin_memory"}


def result_folder(output_dir: str) -> Path:
    """Where the result of a run will stand; makes the folder of the run.

    Raises:
        ConfigError: the result stands there already, or the folder cannot be made.
    """
    folder = Path(output_dir) / _RESULT
    if folder.exists():
        raise ConfigError(f"{folder} exists: that run is finished; choose another output_dir or remove it")
    with naming_write_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def passes_needed(settings: RunArguments, items: int) -> int:
    """How often a run passes over its items, a part of a pass counted whole. They become one dataset of all passes."""
    needed = (
        settings.max_steps * _items_a_step(settings) if settings.max_steps > 0 else settings.num_train_epochs * items
    )
    return math.ceil(needed / items)


def _items_a_step(settings: Any) -> int:
    return int(settings.train_batch_size * settings.gradient_accumulation_steps * settings.world_size)


def keep_best(settings: RunArguments, held_out: bool) -> None:
    """With held-out lists the save that orders them best is the result, without them the last."""
    if not held_out:
        settings.eval_strategy = IntervalStrategy.NO
        return
    settings.eval_strategy = settings.save_strategy = IntervalStrategy.STEPS
    settings.load_best_model_at_end, settings.metric_for_best_model, settings.greater_is_better = True, "nDCG@10", True


def train(trainer: RankingTrainer, arguments: Sequence[Any]) -> dict[str, float]:
    """Trains to the end, from the last save if there is one, and returns the metrics of what was kept.

    Args:
        trainer: its dataset holds all passes, so that a resumed run skips what was seen.
        arguments: the dataclasses of the command; a folder that was begun with others is refused.

    Raises:
        ConfigError: such a folder, or one that cannot be written to.
    """
    folder = Path(str(trainer.args.output_dir))
    with naming_write_errors(folder):
        check_same_run(folder, arguments)
    trainer.args.num_train_epochs = 1
    if trainer.args.max_steps > 0:  # and not a step more, when a run goes on that was killed behind the last
        steps = range(trainer.args.max_steps * _items_a_step(trainer.args))
        trainer.train_dataset = Subset(cast("Dataset[Any]", trainer.train_dataset), steps)
    for plain in (PrinterCallback, ProgressCallback):
        if plain is PrinterCallback or not sys.stderr.isatty():
            trainer.remove_callback(plain)
    trainer.add_callback(SpeedLog())
    trainer.train(resume_from_checkpoint=last_save(folder))
    return {} if trainer.eval_dataset is None else trainer.evaluate()


def last_save(folder: Path) -> str | None:
    """The newest save that was written to its end; those that were not are removed."""
    found = [(re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in folder.iterdir()]
    saves = {int(match[1]): path for match, path in found if match}
    for path in saves.values():
        if not (path / SAVED_WHOLE).is_file():
            shutil.rmtree(path)
    whole = [step for step, path in saves.items() if path.exists()]
    return str(saves[max(whole)]) if whole else None


def check_same_run(folder: Path, arguments: Sequence[Any]) -> None:
    """Remembers the arguments of a new run. Raises: ConfigError when one that goes on has others."""
    given = {key: str(value) for part in arguments for key, value in dataclasses.asdict(part).items()}
    given = {key: value for key, value in given.items() if key not in _OF_THE_PLACE}
    path = folder / _ARGUMENTS_FILE
    if not path.is_file():
        temporary = folder / f".{_ARGUMENTS_FILE}"
        temporary.write_text(json.dumps(given, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
        return
    begun = json.loads(path.read_text(encoding="utf-8"))
    if changed := sorted(key for key in given if given[key] != begun.get(key)):
        first = changed[0]
        raise ConfigError(
            f"{folder} holds a run with another {', '.join(changed)} ({first}: {begun.get(first)}, now "
            f"{given[first]}); give the same arguments to go on with it, or another output_dir"
        )


class SpeedLog(TrainerCallback):
    """A line every logging_steps: loss, held-out nDCG@10, tokens a second, time left."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begun, self._step, self._tokens = time.monotonic(), state.global_step, state.num_input_tokens_seen

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        took = max(time.monotonic() - self._begun, 1e-9)
        steps = state.global_step - self._step
        left = timedelta(seconds=round(took / steps * (state.max_steps - state.global_step))) if steps else "?"
        speed = (int(state.num_input_tokens_seen) - int(self._tokens)) / took
        shown = {key: value for key, value in (logs or {}).items() if key in {"loss", "learning_rate", "eval_nDCG@10"}}
        values = "  ".join(f"{key.removeprefix('eval_')} {value:.4g}" for key, value in shown.items())
        if values and state.is_world_process_zero:
            done = f"step {state.global_step:>6}/{state.max_steps}"
            print(f"{done}  {values}  {speed:,.0f} tokens/s  {left} left", flush=True)
