"""A training run in a folder: starts or resumes it, prints its progress, and writes the checkpoint."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import shutil
import sys
import time
from collections.abc import Sequence, Sized
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from peft.helpers import disable_input_dtype_casting
from rerank_eval.statistics import SIGNIFICANT, compare
from transformers import PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from rerank.checkpoints.bundled import SMOLLM2
from rerank.checkpoints.manifest import RESULT_FOLDER, TrainedRanker
from rerank.config import DEFAULT_ENCODER, EncoderConfig
from rerank.errors import ConfigError
from rerank.prompting.templates import Template
from rerank.util.files import damage_of, report_disk_errors, sha256_of_files
from rerank.util.json_files import read_json, read_saved, write_synced
from rerank_training.trainer.arguments import RunArguments
from rerank_training.trainer.checkpoint import report_write_errors, write_checkpoint
from rerank_training.trainer.flags import ListArguments
from rerank_training.trainer.processes import gather_weights, is_main_process, process_count
from rerank_training.trainer.ranking_trainer import COMPLETE_MARKER, RankingTrainer

logger = logging.getLogger(__name__)

#: File in the folder of a run, with the arguments at its start.
_ARGUMENTS_FILE = "arguments.json"
#: Arguments on the machine, logs and saves. A resumed run may change them, because weights do not depend on them.
_FREE_ARGUMENTS = {
    *("output_dir", "dataloader_pin_memory", "dataloader_num_workers", "dataloader_prefetch_factor"),
    *("dataloader_persistent_workers", "disable_tqdm", "report_to", "run_name", "project", "trackio_space_id"),
    *("logging_dir", "logging_strategy", "logging_first_step", "logging_steps", "logging_nan_inf_filter"),
    *("log_level", "log_level_replica", "log_on_each_node", "include_num_input_tokens_seen"),
    *("save_steps", "save_total_limit", "push_to_hub", "local_rank", "ddp_backend", "ddp_timeout"),
}
#: Key of the number of processes, on which the lists of a step depend. It is the flag's name in `accelerate launch`.
_PROCESSES = "num_processes"
#: Arguments that name files or folders, whose contents are compared, too.
_INPUTS = ("lists", "eval_lists", "qrels", "base", "encoder", "queries", "index")
#: Suffix of the keys of SHA-256 of the contents.
_CONTENTS = " sha256"
#: The files of a folder on which a training depends: weights, queries, and the manifest of an index.
_HASHED_FILES = ("*.safetensors", "*.bin", "queries.jsonl*", "manifest.json")
#: The length of a run. A resumed run may change it; the learning rate then follows the new length.
_LENGTH = "max_steps"
#: Key in the log history of a run: nDCG@10 of each held-out window before the first step.
_NDCG_BEFORE = "before_nDCG@10"
#: Values in the lines of progress.
_LOGGED = {"loss", "learning_rate", "eval_nDCG@10"}


def result_folder(output_dir: str) -> Path:
    """The folder of the run's trained checkpoint. Creates the folder of the run.

    Raises:
        ConfigError: the run is finished already, or its folder holds other files or cannot be created.
    """
    folder = Path(output_dir) / RESULT_FOLDER
    if folder.exists():
        raise ConfigError(f"{folder} exists: that run is finished; choose another --output-dir or remove it")
    refuse_foreign_files(folder.parent)
    with report_write_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def refuse_foreign_files(folder: Path) -> None:
    """Raises: ConfigError when `folder` is a file, or holds files and is not the folder of a run."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; choose another --output-dir")
    if not folder.is_dir() or (folder / _ARGUMENTS_FILE).is_file():
        return
    if files := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
        raise ConfigError(
            f"{folder} exists and is not the folder of a run: it has no {_ARGUMENTS_FILE}, but "
            f"{', '.join(files[:3])}{', …' if len(files) > 3 else ''}; choose another --output-dir"
        )


def train(trainer: RankingTrainer, arguments: Sequence[Any]) -> dict[str, float]:
    """Trains to the end, from the last complete save if there is one; returns the metrics of the selected save.

    Afterwards the main process has all weights.

    Args:
        trainer: a trainer whose dataset holds the items of all steps, so that a resumed run skips those it has seen.
        arguments: the dataclasses of the command; a run that was started with other arguments is not resumed.

    Raises:
        ConfigError: the folder holds a run with other arguments or a save of a later step than the last one, or it
            cannot be written.
    """
    folder = Path(str(trainer.args.output_dir))
    with report_write_errors(folder), trainer.args.main_process_first(local=False):
        save = last_save(folder)
        check_same_run(folder, arguments, started=save is not None)
        if save is not None:
            settings = cast(RunArguments, trainer.args)
            check_within_run(Path(save), len(cast(Sized, trainer.train_dataset)) // settings.items_per_step)
    logger.info("processes: %d, lists per step: %d", process_count(), cast(RunArguments, trainer.args).items_per_step)
    trainer.args.num_train_epochs = 1
    for callback in (PrinterCallback, ProgressCallback):
        if callback is PrinterCallback or not sys.stderr.isatty():
            trainer.remove_callback(callback)
    trainer.add_callback(ProgressLineCallback())
    if trainer.eval_dataset is not None:
        trainer.add_callback(InitialEvaluation(trainer))
    way_out = "free disk space and give the same command again, which resumes from the last save"
    # Autocast converts the inputs of an adapter anyway, so peft need not convert them to float32 and back before.
    without_casting = disable_input_dtype_casting(trainer.model, active=trainer.args.bf16)
    with report_disk_errors(folder, way_out), without_casting:
        trainer.train(resume_from_checkpoint=save)
    metrics = trainer.measure_selected()
    if trainer.is_fsdp_enabled:
        gather_weights(trainer.model)
    return metrics


def train_checkpoint(
    trainer: RankingTrainer,
    folder: Path,
    ranker: TrainedRanker,
    arguments: ListArguments,
    tokenizer: PreTrainedTokenizerBase | None = None,
    template: Template | None = None,
    how_to_serve: str | None = None,
    **manifest: Any,
) -> Path:
    """Trains, writes the checkpoint to `folder`, prints a summary, and returns the folder.

    Args:
        folder: `result_folder` of the run.
        tokenizer: the tokenizer to save; None if the checkpoint uses that of the encoder.
        template: the template of the prompt; None for a ranker without a prompt.
        how_to_serve: lines at the end of the summary; None for `rerank serve` with this model.
        manifest: fields of the manifest that only some trainings have.

    Raises:
        ConfigError: see `train` and `write_checkpoint`.
    """
    metrics = train(trainer, [arguments, trainer.args])
    if trainer.is_world_process_zero():
        write_checkpoint(folder, ranker, arguments, metrics, trainer.model, tokenizer, template, **manifest)
        if how_to_serve is None:
            how_to_serve = f"\nserve it: rerank serve --model {shlex.quote(f'default={folder}')}"
        _print_summary(trainer, folder, how_to_serve)
    return folder


def last_save(folder: Path) -> str | None:
    """The folder of the newest complete save of a run; None if there is none.

    Incomplete saves are removed. A warning tells if one was complete before, and was damaged since.
    """
    for path in folder.glob("checkpoint-*"):
        if not path.name.removeprefix("checkpoint-").isdecimal():
            continue
        marker = path / COMPLETE_MARKER
        sizes = read_saved(marker)
        damage = f"{marker} is cut" if sizes is None else damage_of(path, sizes)
        if damage:
            if marker.is_file():
                logger.warning(
                    "%s, as after a power loss: this save is removed, and the run resumes from an earlier one, if any",
                    damage,
                )
            shutil.rmtree(path, ignore_errors=True)
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def check_same_run(folder: Path, arguments: Sequence[Any], started: bool) -> None:
    """Checks that a resumed run has the arguments of its start; stores the arguments of a new run.

    Args:
        started: False for a run that has not saved anything yet, which may change all arguments.

    Raises:
        ConfigError: an argument on which the result depends has changed, or the content of a file that it names has.
    """
    given = {key: str(value) for part in arguments for key, value in dataclasses.asdict(part).items()}
    given = {key: value for key, value in given.items() if key not in _FREE_ARGUMENTS}
    given[_PROCESSES] = str(process_count())
    given |= _contents(arguments)
    path = folder / _ARGUMENTS_FILE
    stored = read_saved(path) if started and path.is_file() else given
    if stored is None:
        logger.warning("%s cannot be read: the arguments are not compared with those at the start", path)
        stored = given
    changed = sorted(key for key in given if given[key] != stored.get(key))
    if changed == [_LENGTH]:
        logger.warning(
            "--max-steps is %s and was %s at the start: from here on, the learning rate is that of a run of %s steps",
            *(given[_LENGTH], stored.get(_LENGTH), given[_LENGTH]),
        )
    elif changed:
        differences = "; ".join(_difference(key, stored.get(key), given[key]) for key in changed)
        raise ConfigError(
            f"{folder} holds a run with other arguments ({differences}); give the same arguments to resume it, or "
            "another --output-dir"
        )
    if is_main_process():
        write_synced(path, given)


def check_within_run(save: Path, steps: int) -> None:
    """Raises: ConfigError if the step of a save is unknown, or later than the last step of the run."""
    step = read_json(path := save / TRAINER_STATE_NAME).get("global_step")
    if not isinstance(step, int) or not 0 <= step <= steps:
        raise ConfigError(
            f"{path} is of step {step}, and the run has {steps} steps; give a larger --max-steps, remove {save} to go "
            "on from the save before, or choose another --output-dir"
        )


def _difference(key: str, stored: str | None, given: str) -> str:
    name = key.removesuffix(_CONTENTS)
    flag = f"--{name.replace('_', '-')}"
    if name != key:
        return f"{flag} has other contents than at the start: SHA-256 {stored}, now {given}"
    return f"{flag} {stored}, now {given}"


def _contents(arguments: Sequence[Any]) -> dict[str, str]:
    """Key in `arguments.json` → SHA-256 of the file, or of the files of a folder, that an argument names."""
    values = {name: getattr(part, name, None) for part in arguments for name in _INPUTS if getattr(part, name, None)}
    # The settings of an encoder name a folder, too.
    names = {name: EncoderConfig.of(str(value)).name for name, value in values.items()}
    paths = {name: Path(value) for name, value in names.items() if value not in (SMOLLM2, DEFAULT_ENCODER)}
    files = {
        name: [path] if path.is_file() else sorted(file for pattern in _HASHED_FILES for file in path.glob(pattern))
        for name, path in paths.items()
    }
    return {name + _CONTENTS: sha256_of_files(found) for name, found in files.items() if found}


class InitialEvaluation(TrainerCallback):
    """Measures the held-out nDCG@10 before the first step, and keeps it in the log history of the run's saves."""

    def __init__(self, trainer: RankingTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.global_step:
            values = self._trainer.held_out_values()
            state.log_history.append({"step": 0, _NDCG_BEFORE: values})
            if state.is_world_process_zero:
                print(f"step {0:>6}/{state.max_steps}  nDCG@10 {fmean(values):.4f} before the training", flush=True)


def _print_summary(trainer: RankingTrainer, folder: Path, how_to_serve: str) -> None:
    """Prints the selected step, the held-out nDCG@10 before and after, the model's folder, and how to serve it.

    A line says whether nDCG@10 has a significant gain and which weights were kept. Without a gain, it is the last line.
    """
    state = trainer.state
    step = f"best step: {state.best_global_step}" if state.best_global_step else f"last step: {state.global_step}"
    print(f"\n{step} of {state.max_steps}")
    if not trainer.held_out:
        print(f"model: {folder}{how_to_serve}")
        print(
            f"gain: not measured, as no lists were held out; kept: the weights of step {state.global_step}", flush=True
        )
        return
    history: list[Any] = [entry[_NDCG_BEFORE] for entry in state.log_history if _NDCG_BEFORE in entry]
    before = history[-1] if history else []
    print(_change(before, trainer.held_out))
    line, has_gained = gain_line(before, trainer.held_out, state.best_global_step or state.global_step)
    served = f"model: {folder}{how_to_serve}"
    print("\n".join([line, served] if has_gained else [served, line]), flush=True)


def gain_line(before: Sequence[float], after: Sequence[float], step: int) -> tuple[str, bool]:
    """The line on the gain of a training, and True if there is a significant gain.

    Args:
        before, after: nDCG@10 of each held-out list, with the weights at the start and with the kept weights.
        step: the step of the kept weights.
    """
    kept = f"kept: the weights of step {step}"
    if not before:
        return f"gain: unknown, as the start was not measured; {kept}", False
    change = compare(after, before)
    if change.is_better:
        return f"gain: {change.difference:+.4f} nDCG@10 over the weights at the start; {kept}", True
    found = f"{change.difference:+.4f} nDCG@10 against the weights at the start"
    if change.difference > 0:
        return f"gain: not shown, as {found} may be chance (p = {change.p:.2g}); {kept}", False
    return f"gain: none, {found}; {kept}, and those at the start are as good: serve these", False


def _change(before: Sequence[float], after: Sequence[float]) -> str:
    """The means of nDCG@10 with the p-value of their difference.

    They are higher than in an evaluation over all judged passages, because each list has a part of them only.
    """
    measure = f"nDCG@10 within the passages of {len(after):,} held-out lists"
    if not before:
        return f"{measure}: {fmean(after):.4f}"
    change = compare(after, before)
    verdict = "" if change.p < SIGNIFICANT else ", so the difference may be chance"
    return (
        f"{measure}: {change.reference:.4f} before the training, {change.mean:.4f} after; p = {change.p:.2g}{verdict}"
    )


#: Number of first steps on a CPU from which the remaining time is estimated; one is too few, because the first is slow.
_TIMED_STEPS = 3


class ProgressLineCallback(TrainerCallback):
    """Prints a line every `logging_steps` steps: loss, held-out nDCG@10, tokens per second, remaining time."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start_s = time.monotonic()
        self._first_step, self._first_tokens = state.global_step, state.num_input_tokens_seen
        if not state.global_step:
            return
        state.compute_steps(args, state.max_steps)  # a resumed run logs and saves by its present arguments
        if state.is_world_process_zero:
            print(f"resuming at step {state.global_step} of {state.max_steps}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prints, after the first steps on a CPU, an estimate of the remaining time, which may be days."""
        steps, left = state.global_step - self._first_step, state.max_steps - state.global_step
        if steps == _TIMED_STEPS and left and args.device.type == "cpu" and state.is_world_process_zero:
            elapsed_s = time.monotonic() - self._start_s
            rest = timedelta(seconds=round(elapsed_s / steps * left))
            print(
                f"{steps} steps took {elapsed_s:.1f} s on this CPU: the other {left:,} take about {rest}, without "
                "evaluations; --max-steps, or fewer passages in a window, make it shorter",
                flush=True,
            )

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
