"""PE-Rank's two ways from a filled prompt to an order: all passages in one step, or one passage after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel


def one_step(
    transformer: PreTrainedModel, prompts: Sequence[torch.Tensor], passages: Sequence[torch.Tensor]
) -> list[tuple[float, ...]]:
    """For each window, log-softmax over its n passages of h · eᵢ, h being the state of the last position.

    Args:
        prompts: (T, D) input vectors of each window.
        passages: (n, D) projected passages of each window.
    """
    device = prompts[0].device
    last = torch.tensor([len(positions) - 1 for positions in prompts], device=device)
    # Padding on the right of a causal model is never read from, so no mask is needed.
    hidden = transformer(inputs_embeds=pad_sequence(list(prompts), batch_first=True), use_cache=False).last_hidden_state
    states = hidden[torch.arange(len(prompts), device=device), last]  # (B, D)
    return [
        tuple(torch.log_softmax(_inner_products(own, state), dim=0).tolist())
        for own, state in zip(passages, states, strict=True)
    ]


def dynamic(
    transformer: PreTrainedModel, prompts: Sequence[torch.Tensor], passages: Sequence[torch.Tensor]
) -> list[tuple[float, ...]]:
    """For each window, minus the place at which each passage is chosen (PE-Rank, section 3.3). Arguments as above.

    The last state scores the passages that are left; the best one, of equals the first in the window, is the next
    input. That is greedy generation over a vocabulary of n tokens, which stand in a matrix of their own: the model's
    embedding table is neither widened nor written.
    """
    device, rows = prompts[0].device, torch.arange(len(prompts), device=prompts[0].device)
    sizes = [len(own) for own in passages]
    lengths = torch.tensor([len(positions) for positions in prompts], device=device)
    inputs = pad_sequence(list(prompts), batch_first=True, padding_side="left")  # (B, T, D), then (B, 1, D)
    mask = torch.arange(inputs.shape[1], device=device) >= inputs.shape[1] - lengths[:, None]  # (B, T), growing
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    vocabulary = pad_sequence(list(passages), batch_first=True)  # (B, N, D)
    remain = torch.arange(max(sizes), device=device) < torch.tensor(sizes, device=device)[:, None]  # (B, N)
    cache, chosen = None, torch.empty(len(prompts), 0, dtype=torch.long, device=device)
    for step in range(max(sizes) - 1):  # the last passage is chosen by what is left; shorter windows idle
        output = transformer(
            inputs_embeds=inputs, attention_mask=mask.long(), position_ids=places, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        products = _inner_products(vocabulary, output.last_hidden_state[:, -1:])
        best = products.masked_fill(~remain, -torch.inf).argmax(dim=1)  # of equals the first
        remain[rows, best] = False
        chosen = torch.cat([chosen, best[:, None]], dim=1)
        inputs, places = vocabulary[rows, best][:, None], lengths[:, None] + step
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
    return [_minus_places(order, n) for order, n in zip(chosen.tolist(), sizes, strict=True)]


def _minus_places(chosen: Sequence[int], n: int) -> tuple[float, ...]:
    """Minus the place of each of n passages; `chosen` has all of them but the last, and perhaps idle steps behind."""
    order = list(chosen[: n - 1])
    order += set(range(n)).difference(order)
    return tuple(float(-order.index(passage)) for passage in range(n))


def _inner_products(passages: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """(…, n, D) and (…, 1, D) or (D,) → (…, n).

    Row by row in float64, so that a passage's score depends neither on its place nor on n, and equal passages tie.
    """
    return (passages.double() * state.double()).sum(-1)
