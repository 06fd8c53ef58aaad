"""PE-Rank's two ways from a filled prompt to an order: all passages in one step, or one passage after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from rerank.reader import LastPositionReader


def one_step(
    reader: LastPositionReader, prompts: Sequence[torch.Tensor], passages: Sequence[torch.Tensor]
) -> list[tuple[float, ...]]:
    """For each window, log-softmax over its n passages of h · eᵢ, h being the state of the last position.

    Args:
        prompts: (T, D) input vectors of each window.
        passages: (n, D) projected passages of each window.
    """
    states = reader.read(prompts)  # (B, D)
    return [
        tuple(torch.log_softmax(_inner_products(own, state), dim=0).tolist())
        for own, state in zip(passages, states, strict=True)
    ]


def dynamic(
    transformer: PreTrainedModel,
    prompts: Sequence[torch.Tensor],
    passages: Sequence[torch.Tensor],
    top_ns: Sequence[int],
) -> list[tuple[float, ...]]:
    """For each window, minus the place at which each passage is chosen (PE-Rank, section 3.3). Arguments as above.

    The last state scores the passages that are left; the best one, of equals the first in the window, is the next
    input. That is greedy generation over a vocabulary of n tokens, which stand in a matrix of their own: the model's
    embedding table is neither widened nor written.

    Args:
        top_ns: for each window, how many passages to choose; 0: all. Those that are left follow in the order of the
            last inner products, the best guess that costs nothing more: with 1, the order is that of `one_step`.
    """
    device, rows = prompts[0].device, torch.arange(len(prompts), device=prompts[0].device)
    sizes = [len(own) for own in passages]
    steps = [choices(n, top_n) for n, top_n in zip(sizes, top_ns, strict=True)]
    lengths = torch.tensor([len(positions) for positions in prompts], device=device)
    inputs = pad_sequence(list(prompts), batch_first=True, padding_side="left")  # (B, T, D), then (B, 1, D)
    mask = torch.arange(inputs.shape[1], device=device) >= inputs.shape[1] - lengths[:, None]  # (B, T), growing
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    vocabulary = pad_sequence(list(passages), batch_first=True)  # (B, N, D)
    remain = torch.arange(max(sizes), device=device) < torch.tensor(sizes, device=device)[:, None]  # (B, N)
    cache, products, chosen = None, list[torch.Tensor](), list[torch.Tensor]()  # a step: (B, N) and (B,)
    for step in range(max(steps)):  # windows that are done idle
        output = transformer(
            inputs_embeds=inputs, attention_mask=mask.long(), position_ids=places, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        products.append(_inner_products(vocabulary, output.last_hidden_state[:, -1:]))
        best = products[-1].masked_fill(~remain, -torch.inf).argmax(dim=1)  # of equals the first
        chosen.append(best)
        remain[rows, best] = False
        inputs, places = vocabulary[rows, best][:, None].to(inputs.dtype), lengths[:, None] + step
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
    picked = [best.tolist() for best in chosen]  # (steps, B)
    return [
        _minus_places(
            [best[window] for best in picked[:own]],
            products[own - 1][window, :n].tolist() if own else [0.0] * n,
        )
        for window, (own, n) in enumerate(zip(steps, sizes, strict=True))
    ]


def choices(n: int, top_n: int) -> int:
    """How many of n passages are chosen, each by one pass: `top_n` of them (0: all), and never the last one left."""
    return max(0, min(top_n or n, n - 1))


def _minus_places(chosen: Sequence[int], products: Sequence[float]) -> tuple[float, ...]:
    """Minus the place of each of n passages: those chosen, then the others by their n inner products, descending."""
    left = sorted(set(range(len(products))).difference(chosen), key=lambda passage: (-products[passage], passage))
    places = {passage: place for place, passage in enumerate([*chosen, *left])}
    return tuple(float(-places[passage]) for passage in range(len(products)))


def _inner_products(passages: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """(…, n, D) and (…, 1, D) or (D,) → (…, n).

    Row by row in float64, so that a passage's score depends neither on its place nor on n, and equal passages tie.
    """
    return (passages.double() * state.double()).sum(-1)
