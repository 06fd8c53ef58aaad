"""States that are kept: keys and values of beginnings that come again, bounded in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rerank.models.byte_cache import ByteCache
from rerank.prompting.cache import BYTES_PER_TOKEN

if TYPE_CHECKING:  # metrics read the cache, also where no model runs
    import torch

#: Keys and values of P positions in each layer, (1, H_kv, P, D) each.
State: TypeAlias = "tuple[tuple[torch.Tensor, torch.Tensor], ...]"
#: Token ids of a beginning.
TokenIds: TypeAlias = tuple[int, ...]

#: Estimate of the memory of a tensor besides its numbers, in bytes.
_TENSOR_BYTES = 600


class StateCache(ByteCache[TokenIds, "State"]):
    """The states of the beginnings that one model read last.

    A beginning is known by its token ids, and its positions start from 0.
    """

    def put(self, beginning: TokenIds, state: State) -> None:
        """Keeps a state, unless it alone exceeds the bound."""
        self.keep(beginning, state, _bytes_of(beginning, state))


def _bytes_of(beginning: TokenIds, state: State) -> int:
    """The memory of a state and of the token ids by which it is known."""
    return len(beginning) * BYTES_PER_TOKEN + sum(_TENSOR_BYTES + each.nbytes for layer in state for each in layer)
