"""States that are kept: keys and values of beginnings that come again, bounded in bytes."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from cachetools import LRUCache

from rerank.prompting.cache import BYTES_PER_TOKEN

if TYPE_CHECKING:  # metrics read the cache, also where no model runs
    import torch

#: Keys and values of P positions in each layer, (1, H_kv, P, D) each.
State: TypeAlias = "tuple[tuple[torch.Tensor, torch.Tensor], ...]"
#: Token ids of a beginning.
TokenIds: TypeAlias = tuple[int, ...]

#: Estimate of the memory of a tensor besides its numbers, in bytes.
_TENSOR_BYTES = 600


class StateCache:
    """The states of the beginnings that one model read last; the least recently used go first. Safe between threads.

    A beginning is known by its token ids, and its positions start from 0.

    Args:
        max_bytes: bound on the memory of all states; 0: none is kept.

    Attributes:
        hits, misses: the number of beginnings that were looked up so far and found, or not.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._lock = Lock()
        self._states: Any = LRUCache(max_bytes, getsizeof=lambda sized: sized[1])

    def __contains__(self, beginning: TokenIds) -> bool:
        """True if its state is kept; this is no use of it, and no hit."""
        with self._lock:
            return beginning in self._states

    @property
    def used_bytes(self) -> int:
        """The memory of all states."""
        with self._lock:
            return int(self._states.currsize)

    def get(self, beginning: TokenIds) -> State | None:
        """The state of a beginning; None if it is not kept."""
        with self._lock:
            found = self._states.get(beginning)
            self.hits, self.misses = self.hits + (found is not None), self.misses + (found is None)
        return None if found is None else found[0]

    def put(self, beginning: TokenIds, state: State) -> None:
        """Keeps a state, unless it alone exceeds the bound."""
        size = _bytes_of(beginning, state)
        if size > self.max_bytes:
            return
        with self._lock:
            self._states[beginning] = state, size

    def clear(self) -> None:
        """Forgets all states and the counts."""
        with self._lock:
            self._states.clear()
            self.hits = self.misses = 0


def _bytes_of(beginning: TokenIds, state: State) -> int:
    """The memory of a state and of the token ids by which it is known."""
    return len(beginning) * BYTES_PER_TOKEN + sum(_TENSOR_BYTES + each.nbytes for layer in state for each in layer)
