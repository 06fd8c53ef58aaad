"""What to serve after `train-fusion`: the default, its weights changed, or with the trained correction."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from scipy import stats

from rerank.config import BUNDLED_MODELS
from rerank.types import FirstStageWeight
from rerank.util.files import atomic_file
from rerank_training.fusion.weights import Values, Weights, choose, cross_validate, p_of_gain

_SIGNIFICANT = 0.05
_SETTINGS_FILE = "service.yaml"


@dataclass(frozen=True, slots=True)
class Compared:
    """nDCG@10 of a choice and of the default on the same lists, with the 95 % interval of the difference.

    Attributes:
        p: of the difference.
    """

    name: str
    mean: float
    default: float
    low: float
    high: float
    p: float
    lists: int

    @classmethod
    def of(cls, name: str, values: Values, default: Values, p: float | None = None) -> Compared:
        """Compares the values of the same lists; `p` is that of the paired t-test unless it is given."""
        gains, n = values - default, len(values)
        error = float(gains.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
        half = error * float(stats.t.ppf(0.975, n - 1)) if error else 0.0
        of_t = float(stats.ttest_rel(values, default).pvalue) if error else 1.0
        mean = float(gains.mean())
        return cls(
            name, float(values.mean()), float(default.mean()), mean - half, mean + half, of_t if p is None else p, n
        )

    @property
    def gain(self) -> float:
        return self.mean - self.default

    @property
    def is_better(self) -> bool:
        """True if a gain over the default is shown."""
        return self.p < _SIGNIFICANT and self.low > 0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.mean:.4f} on {self.lists} lists, {self.gain:+.4f} from the default's "
            f"{self.default:.4f} ({self.low:+.4f} to {self.high:+.4f}, p = {self.p:.2g})"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparisons of a run with the default, None where one was not made.

    Attributes:
        first_stage: the order of the first stage.
        weights: by cross-validation; `chosen` are those that all lists choose.
        correction: on held-out lists; `folder` is that of its checkpoint.
        weights_beside: the weights on the same held-out lists.
    """

    first_stage: Compared
    weights: Compared
    chosen: Weights
    correction: Compared | None = None
    weights_beside: Compared | None = None
    folder: Path | None = None

    @classmethod
    def of_weights(cls, first_stage: Values, values: Values, weights: Sequence[Weights], seed: int) -> Verdict:
        """Compares the first stage (lists,) and the weights (weights, lists) with the default, which is the first."""
        chosen = weights[choose(values)]
        name, p = f"{chosen}, by cross-validation", p_of_gain(values, seed)
        of_weights = Compared.of(name, cross_validate(values, seed), values[0], p)
        return cls(Compared.of("the first stage", first_stage, values[0]), of_weights, chosen)

    def with_correction(self, correction: Values, weights: Values, default: Values, folder: Path) -> Verdict:
        """Adds a correction; the values are those of the held-out lists, of which there may be none."""
        if not len(default):
            return replace(self, folder=folder)
        return replace(
            self,
            correction=Compared.of("with the correction, on held-out lists", correction, default),
            weights_beside=Compared.of("with the weights, on the same lists", weights, default),
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
        """What the command prints: one line each comparison, the reason and the command."""
        compared = [self.first_stage, self.weights, self.correction, self.weights_beside]
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
            *(f"  {line}" for line in compared if line is not None),
            *([lost] if self.first_stage.is_better and self.to_serve == "default" else []),
            f"serve the {self.to_serve}: {command}",
        ]


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
