"""Chooses what to serve after `train-fusion`: the default, the default with other weights, or with the correction."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rerank_eval.statistics import Comparison, compare

from rerank.config import BUNDLED_MODELS
from rerank.types import FirstStageWeight
from rerank.util.files import atomic_file
from rerank_training.fusion.weights import Values, Weights, choose, cross_validate, p_of_gain

_SETTINGS_FILE = "service.yaml"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparisons of a run with the default, None where one was not made.

    Attributes:
        first_stage: the order of the first stage.
        weights: by cross-validation, with the p of `p_of_gain`; `chosen` are those that all lists choose.
        correction: on held-out lists; `folder` is that of its checkpoint.
        weights_beside: the weights on the same held-out lists.
    """

    first_stage: Comparison
    weights: Comparison
    chosen: Weights
    correction: Comparison | None = None
    weights_beside: Comparison | None = None
    folder: Path | None = None

    @classmethod
    def of_weights(cls, first_stage: Values, values: Values, weights: Sequence[Weights], seed: int) -> Verdict:
        """Compares the first stage (lists,) and the weights (weights, lists) with the default, which is the first."""
        default, chosen = values[0], weights[choose(values)]
        of_weights = replace(compare(cross_validate(values, seed), default), p=p_of_gain(values, seed))
        return cls(compare(first_stage, default), of_weights, chosen)

    def with_correction(self, correction: Values, weights: Values, default: Values, folder: Path) -> Verdict:
        """Adds a correction; the values are those of the held-out lists, and empty without any."""
        if not len(default):
            return replace(self, folder=folder)
        return replace(
            self,
            correction=compare(correction, default),
            weights_beside=compare(weights, default),
            folder=folder,
        )

    @property
    def to_serve(self) -> str:
        """default, weights or correction: the simplest that no other one is shown to beat."""
        rival = self.weights_beside.mean if self.weights.is_better and self.weights_beside else -1.0
        if self.correction is not None and self.correction.is_better and self.correction.mean > rival:
            return "correction"
        return "weights" if self.weights.is_better else "default"

    def lines(self, out: Path) -> list[str]:
        """Returns the lines that `train-fusion` prints: the comparisons, the reason, and the command that serves."""
        compared = {
            "the first stage": self.first_stage,
            f"{self.chosen}, by cross-validation": self.weights,
            "with the correction, on held-out lists": self.correction,
            "with the weights, on the same lists": self.weights_beside,
        }
        command = {
            "default": "rerank serve",
            "weights": f"rerank serve --config {shlex.quote(str(out / _SETTINGS_FILE))}",
            "correction": f"rerank serve --model {shlex.quote(f'default={self.folder}')}",
        }[self.to_serve]
        lost = (
            "The first stage's own order is better than the default: serve the model identity, or judge more queries."
        )
        return [
            "nDCG@10 within the lists",
            *(f"  {name}: {_compared(with_default)}" for name, with_default in compared.items() if with_default),
            *([lost] if self.first_stage.is_better and self.to_serve == "default" else []),
            f"serve the {self.to_serve}: {command}",
        ]


def _compared(c: Comparison) -> str:
    low, high = c.interval
    return (
        f"{c.mean:.4f} on {c.queries} lists, {c.difference:+.4f} from the default's {c.reference:.4f} "
        f"({low:+.4f} to {high:+.4f}, p = {c.p:.2g})"
    )


def write_settings(out: Path, weights: Weights, kind: FirstStageWeight) -> None:
    """Writes the settings of a service whose default model has these weights.

    Args:
        kind: of the lists, whose weight they have; a number stands for all kinds.
    """
    of_kind = {str(kind): weights.first_stage} if isinstance(kind, str) else weights.first_stage
    default = {"name": "default", "ranker": "fusion", "first_stage_weight": of_kind, "sparse_weight": weights.sparse}
    others = [{"name": model.name, "ranker": model.ranker} for model in BUNDLED_MODELS[1:]]
    with atomic_file(out / _SETTINGS_FILE) as temporary:
        temporary.write_text(yaml.safe_dump({"models": [default, *others]}, sort_keys=False), encoding="utf-8")
