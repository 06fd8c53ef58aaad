"""Reports of a training run on the console: a line every some steps, and a summary at the end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from rerank_eval.statistics import SIGNIFICANT, compare
from transformers import TrainerCallback

from rerank_training.trainer.ranking_trainer import RankingTrainer

#: Key in the log history of a run: nDCG@10 of each held-out window before the first step.
_NDCG_BEFORE = "before_nDCG@10"
_LOGGED = {"loss", "learning_rate", "eval_nDCG@10"}


class MeasureBefore(TrainerCallback):
    """Measures the held-out nDCG@10 before the first step, and keeps it in the log history of the run's saves."""

    def __init__(self, trainer: RankingTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.global_step:
            values = self._trainer.held_out_values()
            state.log_history.append({"step": 0, _NDCG_BEFORE: values})
            if state.is_world_process_zero:
                print(f"step {0:>6}/{state.max_steps}  nDCG@10 {fmean(values):.4f} before the training", flush=True)


def print_summary(trainer: RankingTrainer, folder: Path, served: bool = True) -> None:
    """Prints the selected step, the held-out nDCG@10 before and after, the model's folder, and how to serve it.

    Args:
        trainer: after the training; without held-out lists nothing was measured.
        folder: of the trained checkpoint, in the folder of the run.
        served: False for a checkpoint that is not served yet.
    """
    state = trainer.state
    if trainer.held_out:
        step = f"best step: {state.best_global_step}" if state.best_global_step else f"last step: {state.global_step}"
        print(f"\n{step} of {state.max_steps}")
        history: list[Any] = [entry[_NDCG_BEFORE] for entry in state.log_history if _NDCG_BEFORE in entry]
        print(_change(history[-1] if history else [], trainer.held_out))
    else:
        print(f"\nlast step: {state.global_step} of {state.max_steps}; nothing was measured, as no lists were held out")
    print(f"model: {folder}", flush=True)
    if served:
        print(f"serve it: rerank serve --model {shlex.quote(f'default={folder}')}", flush=True)


def _change(before: Sequence[float], after: Sequence[float]) -> str:
    """The means with the p of their difference. An evaluation over all judged passages gives lower values."""
    measure = f"nDCG@10 within the passages of {len(after):,} held-out lists"
    if not before:
        return f"{measure}: {fmean(after):.4f}"
    change = compare(after, before)
    verdict = "" if change.p < SIGNIFICANT else ", so the difference may be chance"
    return (
        f"{measure}: {change.reference:.4f} before the training, {change.mean:.4f} after; p = {change.p:.2g}{verdict}"
    )


class SpeedLog(TrainerCallback):
    """Prints a line every `logging_steps` steps: loss, held-out nDCG@10, tokens per second, remaining time."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start_s = time.monotonic()
        self._first_step, self._first_tokens = state.global_step, state.num_input_tokens_seen
        if not state.global_step:
            return
        state.compute_steps(args, state.max_steps)  # a resumed run logs and saves as it is asked to now
        if state.is_world_process_zero:
            print(f"resuming at step {state.global_step} of {state.max_steps}", flush=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        elapsed_s = max(time.monotonic() - self._start_s, 1e-9)
        steps = state.global_step - self._first_step
        left = timedelta(seconds=round(elapsed_s / steps * (state.max_steps - state.global_step))) if steps else "?"
        tokens = int(state.num_input_tokens_seen) - int(self._first_tokens)
        speed = f"{tokens / elapsed_s:,.0f} tokens/s  " if tokens else ""
        shown = {key: value for key, value in (logs or {}).items() if key in _LOGGED}
        values = "  ".join(f"{key.removeprefix('eval_')} {value:.4g}" for key, value in shown.items())
        if values and state.is_world_process_zero:
            step = f"step {state.global_step:>6}/{state.max_steps}"
            print(f"{step}  {values}  {speed}{left} left", flush=True)
