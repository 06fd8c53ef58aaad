"""transformers' Trainer over windows: our objective as loss, nDCG@10 of held-out lists as metric, data in our order."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from rerank_training.checkpoint import naming_write_errors
from rerank_training.ndcg import ndcg_at_10

#: A save has this file when it was written to its end; a run that is killed while it saves goes on from the one before.
SAVED_WHOLE = "whole"


class RankObjective(Protocol):
    """What a batch costs, and how a model scores it."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor: ...

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor: ...


class RankingTrainer(Trainer):
    """Trains on batches that have `relevance` and `mask`. The datasets give windows, in the order in which they come.

    Args:
        objective: loss and scores of a batch.
    """

    objective: RankObjective
    model: nn.Module

    def __init__(self, objective: RankObjective, **options: Any) -> None:
        super().__init__(**options)
        self.objective = objective
        self.model_accepts_loss_kwargs = False  # `compute_loss` gives a mean, which Trainer divides for accumulation

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The objective's mean over the windows of this batch."""
        if return_outputs:
            raise NotImplementedError("evaluation has its own loop; this is a bug")
        return self.objective.loss(model, inputs)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """`eval_nDCG@10`: the mean over the held-out windows, each read in one piece."""
        loader = self.get_eval_dataloader(eval_dataset)
        metrics = {f"{metric_key_prefix}_nDCG@10": self._mean_ndcg(loader)}
        self.log(dict(metrics))  # it adds to what it is given
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.control.should_save |= self.args.load_best_model_at_end  # the best step must be one that was saved
        return metrics

    @torch.no_grad()
    def _mean_ndcg(self, loader: DataLoader[Any]) -> float:
        self.model.eval()
        measured = []
        for batch in loader:
            inputs = self._prepare_inputs(batch)
            with self.compute_loss_context_manager():
                scores = self.objective.scores(self.model, inputs)
            own = ndcg_at_10(scores.float(), inputs["relevance"], inputs["mask"])
            measured.append(self.accelerator.gather_for_metrics(own).cpu())
        self.model.train()
        return float(torch.cat(measured).mean())

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return SequentialSampler(cast(Sized, self.train_dataset))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run_folder = str(self.args.output_dir)
        folder = Path(run_folder) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # nothing goes before this save is whole
        try:
            with naming_write_errors(folder):
                super()._save_checkpoint(model, trial)
                if self.args.should_save:
                    (folder / SAVED_WHOLE).touch()
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            rotate_checkpoints(run_folder, limit, self.state.best_model_checkpoint)
