"""transformers' Trainer for ranking: an objective as the loss, held-out nDCG@10 as the metric, no data shuffling."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import IntervalStrategy, Trainer, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from rerank.checkpoints.load_errors import listed
from rerank.errors import CheckpointError
from rerank.util.files import open_to_readers, synced_sizes
from rerank.util.json_files import write_synced
from rerank_training.trainer.checkpoint import report_write_errors
from rerank_training.trainer.gpu import BucketCollator, CompiledLayers, halve_frozen_weights, positions_of
from rerank_training.trainer.ndcg import ndcg_at_10
from rerank_training.trainer.processes import sum_of_all_processes

#: File in every complete save, with the sizes of the other files. A run that was killed during a save, or ended by a
#: power loss, resumes from the last complete save.
COMPLETE_MARKER = "complete"


def runs_on_gpu(settings: TrainingArguments) -> bool:
    """True if a training runs on CUDA."""
    return settings.device.type == "cuda"


class RankObjective(Protocol):
    """Loss of a batch, and the scores that a model gives to its passages.

    The loss is the sum of `terms` (K,). A term is a mean over items, such as lists or tokens, in the batches of all
    processes. `counts` (K,) has the number of these items in the batch of this process. `scores` (B, N) are the scores
    of the passages.
    """

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor: ...

    def counts(self, batch: dict[str, Tensor]) -> Tensor: ...

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor: ...


class RankingTrainer(Trainer):
    """Trains on batches that have `relevance` and `mask`, in the order of the dataset.

    The result is the save with the best nDCG@10 on the held-out lists; without them, the last save. On a GPU, batches
    are padded to few lengths, and layers are compiled unless FSDP divides them.

    Args:
        objective: loss and scores of a batch.
        options: arguments of transformers' Trainer.
    """

    objective: RankObjective
    model: nn.Module

    def __init__(self, objective: RankObjective, **options: Any) -> None:
        settings: TrainingArguments = options["args"]
        if options.get("eval_dataset") is None:
            settings.eval_strategy = IntervalStrategy.NO
        else:
            settings.eval_strategy = settings.save_strategy = IntervalStrategy.STEPS
            settings.load_best_model_at_end, settings.greater_is_better = True, True
            settings.metric_for_best_model = "nDCG@10"
        self._compiled: CompiledLayers | None = None
        model = options["model"]
        if settings.bf16 and not settings.fsdp:
            halve_frozen_weights(model)
        if runs_on_gpu(settings):
            options["data_collator"] = BucketCollator(options["data_collator"], positions_of(model))
            self._compiled = None if settings.fsdp else CompiledLayers(model)
        super().__init__(**options)
        self.objective = objective
        #: nDCG@10 of each held-out window with the weights that were selected; set by `measure_selected`.
        self.held_out: list[float] = []
        self._evaluated: dict[int, list[float]] = {}
        self.model_accepts_loss_kwargs = False  # Trainer divides what `compute_loss` returns by the number of batches

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Tensor]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Tensor]], Tensor | None]:
        """The batches of a step, and the counts of their items in all processes, None if the step has one batch."""
        batches = list(islice(epoch_iterator, num_batches))
        if num_batches == 1 or not batches:
            return batches, None
        counts = torch.stack([self.objective.counts(batch) for batch in batches]).sum(dim=0)
        return batches, sum_of_all_processes(counts.to(device))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The loss of a batch. The mean over the batches of a step is the loss of one batch with all their windows.

        Losses that compare the passages of a batch with one another, such as InfoNCE, see one batch at a time.

        Args:
            num_items_in_batch: counts of the items of the whole step, see `get_batch_samples`.
        """
        if return_outputs:
            raise NotImplementedError("evaluation has another loop; this is a bug")
        terms = self.objective.terms(model, inputs)
        if num_items_in_batch is not None:
            counts = sum_of_all_processes(self.objective.counts(inputs))
            shares = counts / torch.as_tensor(num_items_in_batch, device=counts.device).clamp(min=1)
            terms = terms * shares * self.current_gradient_accumulation_steps
        return terms.sum()

    def training_step(self, model: nn.Module, *given: Any, **options: Any) -> Tensor:
        step = partial(super().training_step, model, *given, **options)
        return step() if self._compiled is None else self._compiled.run(step, undo=model.zero_grad)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The metric `eval_nDCG@10`, the mean over the held-out windows; it is logged and kept for its step."""
        self._evaluated[self.state.global_step] = values = self.held_out_values(eval_dataset)
        metrics = {f"{metric_key_prefix}_nDCG@10": fmean(values)}
        self.log(dict(metrics))  # a copy, because `log` adds entries
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.control.should_save |= self.args.load_best_model_at_end  # the best step can only be loaded if it is saved
        return metrics

    def measure_selected(self) -> dict[str, float]:
        """The metrics of the selected save, whose weights are in memory now; empty without held-out lists."""
        if self.eval_dataset is None:
            return {}
        step = self.state.best_global_step or self.state.global_step
        self.held_out = self._evaluated.get(step) or self.held_out_values()  # evaluated by an earlier process
        return {"eval_nDCG@10": fmean(self.held_out)}

    @torch.no_grad()
    def held_out_values(self, eval_dataset: Any = None) -> list[float]:
        """nDCG@10 of each held-out window with the present weights of the model."""
        self.model.eval()
        values = []
        for batch in self.get_eval_dataloader(eval_dataset):
            inputs = self._prepare_inputs(batch)
            with self.compute_loss_context_manager():
                scores = self.objective.scores(self.model, inputs)
            ndcg = ndcg_at_10(scores.float(), inputs["relevance"], inputs["mask"])
            values.append(self.accelerator.gather_for_metrics(ndcg).cpu())
        self.model.train()
        return [float(value) for value in torch.cat(values)]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raises: CheckpointError if a save lacks a weight of the model, or has a weight that the model lacks.

        Only one of several tied weights, such as a head and the token embeddings, is saved.
        """
        weights = dict(self.model.named_parameters(remove_duplicate=False))
        missing = set(load_result.missing_keys)
        loaded = {id(weight) for name, weight in weights.items() if name not in missing}
        lacking = sorted(name for name in missing if id(weights.get(name)) not in loaded)
        if lacking or load_result.unexpected_keys:
            named = [("without", lacking), ("with unknown", sorted(load_result.unexpected_keys))]
            problem = "; ".join(f"{what} {listed(names)}" for what, names in named if names)
            raise CheckpointError(
                f"a save in {self.args.output_dir} does not fit the model: weights {problem}; remove the newest "
                "checkpoint-*, and give the same command again"
            )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(cast(Sized, self.train_dataset))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Old saves are removed only after this one is complete, so that a kill at any time leaves a complete save."""
        run_folder = str(self.args.output_dir)
        folder = Path(run_folder) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with report_write_errors(folder):
                folder.mkdir(exist_ok=True)  # with FSDP, a process records the best save only if its folder exists
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()  # each process writes the state of its random numbers
                if self.args.should_save:
                    open_to_readers(folder)
                    write_synced(folder / COMPLETE_MARKER, synced_sizes(folder))
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            rotate_checkpoints(run_folder, limit, self.state.best_model_checkpoint)
