"""How much a request will take of each model, from its schedule's bounds and from the windows seen so far. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rerank.engine.strategies import Cascade, Strategy
from rerank.engine.throughput import Lane, Stage
from rerank.types import Passage

#: How much a request's tokens weigh in a model's average when the next one has been seen.
_DECAY = 0.9


class PassageTokens:
    """How many positions a passage takes in a window of a model, on average over the latest windows."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def observe(self, model: str, tokens: Sequence[int], passages: Sequence[int]) -> None:
        old_tokens, old_passages = self._sums.get(model, (0.0, 0.0))
        self._sums[model] = (_DECAY * old_tokens + sum(tokens), _DECAY * old_passages + sum(passages))

    def average(self, model: str) -> float:
        """1 for a model that has read nothing yet: no passage takes less."""
        tokens, passages = self._sums.get(model, (0.0, 0.0))
        return tokens / passages if passages else 1.0


@dataclass
class _Share:
    """What one model will do of a request: likely windows in all, and those seen."""

    windows: float
    window_tokens: float
    seen_windows: int = 0
    seen_tokens: int = 0

    @property
    def left(self) -> float:
        """Tokens of the windows that are still to come, by the average of those seen."""
        typical = self.seen_tokens / self.seen_windows if self.seen_windows else self.window_tokens
        return max(0.0, self.windows - self.seen_windows) * typical


class WorkEstimate:
    """What remains of one request.

    Args:
        model: orders the candidates; a cascade has another one too.
        passages: the candidates.
        average: model → positions a passage, see PassageTokens.
    """

    def __init__(
        self, strategy: Strategy, model: str, passages: Sequence[Passage], average: Callable[[str], float]
    ) -> None:
        n = len(passages)
        self._shares = {
            name: _Share(_likely_windows(part, n), max(1.0, min(n, part.window_size) * average(name)))
            for name, part in _parts(strategy, model).items()
        }
        self._to_prepare = dict.fromkeys(self._shares, prepare_tokens(passages))

    def prepared(self, model: str) -> None:
        self._to_prepare[model] = 0

    def left(self) -> dict[Lane, float]:
        """What is to come, by lane."""
        left: dict[Lane, float] = {Lane(Stage.RANK, model): share.left for model, share in self._shares.items()}
        return left | {Lane(Stage.PREPARE, model): float(tokens) for model, tokens in self._to_prepare.items()}

    def left_with(self, model: str, tokens: Sequence[int]) -> dict[Lane, float]:
        """What is to come now that windows of so many tokens are next; their successors are likely to be like them."""
        share = self._shares[model]
        share.seen_windows += len(tokens)
        share.seen_tokens += sum(tokens)
        left = self.left()
        left[Lane(Stage.RANK, model)] += sum(max(1, own) for own in tokens)
        return left


def prepare_tokens(passages: Sequence[Passage]) -> int:
    """The work of preparing: the query, and the passages that bring no vector."""
    return 1 + sum(passage.vector is None for passage in passages)


def _parts(strategy: Strategy, model: str) -> dict[str, Strategy]:
    """Model → its part of the schedule."""
    if isinstance(strategy, Cascade):
        return {strategy.preranker: strategy.first, model: strategy}
    return {model: strategy}


def _likely_windows(strategy: Strategy, n: int) -> float:
    """The middle between the bounds; of a cascade, the one window that the request's own model reads."""
    if isinstance(strategy, Cascade):
        return min(n, 1)
    cost = strategy.cost(n)
    return (cost.min_windows + cost.max_windows) / 2
