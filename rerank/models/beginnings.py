"""Reads the beginning that sequences share once, and the rest of each sequence after it, with a causal LM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rerank.util.byte_cache import BYTES_PER_TOKEN, ByteCache

#: Token ids of a beginning.
TokenIds: TypeAlias = tuple[int, ...]
#: Keys and values of P positions in each layer, (1, H_kv, P, D) each.
_State: TypeAlias = tuple[tuple[torch.Tensor, torch.Tensor], ...]

#: Bound on the memory of the kept beginnings, in bytes: one of 100 tokens has 23 MB in a model of 0.6B parameters.
_MAX_BYTES = 128 * 1024 * 1024
#: Estimate of the memory of a tensor besides its numbers, in bytes.
_TENSOR_BYTES = 600


class SharedBeginnings:
    """Keeps the keys and values of the beginnings that one causal LM of transformers read last.

    Args:
        model: reads the beginnings.

    Attributes:
        states: the kept ones, by their token ids.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.states = ByteCache[TokenIds, _State](_MAX_BYTES)

    @staticmethod
    def can_share(model: Any) -> bool:
        """Returns True if each layer of the model attends to all earlier positions, and keeps their keys and values."""
        try:
            layers = DynamicCache(config=model.config).layers
        except Exception:  # whatever a foreign configuration raises, its model can be served without
            return False
        return all(type(layer) is DynamicLayer for layer in layers)

    def inputs_after(self, beginning: TokenIds, mask: torch.Tensor) -> Mapping[str, Any]:
        """Returns the arguments of the model for B sequences after a beginning, besides their token ids.

        Args:
            mask: (B, T) 1 at the tokens of each sequence, 0 at the padding before them.
        """
        rows, length = len(mask), len(beginning)
        whole = torch.cat([mask.new_ones(rows, length), mask], dim=1)
        of_rows = [tuple(tensor.expand(rows, -1, -1, -1) for tensor in layer) for layer in self._state(beginning)]
        return {
            "past_key_values": DynamicCache(of_rows, config=self._model.config),
            "attention_mask": whole,
            "position_ids": (whole.cumsum(dim=1) - 1)[:, length:],
        }

    def _state(self, beginning: TokenIds) -> _State:
        state = self.states.get(beginning)
        if state is None:
            cache: Any = DynamicCache(config=self._model.config)
            token_ids = torch.tensor([beginning], device=self._model.device)
            self._model(input_ids=token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            state = tuple((layer.keys, layer.values) for layer in cache.layers)
            size = sum(_TENSOR_BYTES + tensor.nbytes for layer in state for tensor in layer)
            self.states.keep(beginning, state, size + len(beginning) * BYTES_PER_TOKEN)
        return state
