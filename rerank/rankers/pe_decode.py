"""PE-Rank's two ways from a filled prompt to an order: all passages in one step, or one passage after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from rerank.models.kv_cache import DecodeState
from rerank.models.last_token import LastTokenReader


def one_step(
    reader: LastTokenReader, prompts: Sequence[torch.Tensor], passages: Sequence[torch.Tensor]
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
    prefill: Callable[[Sequence[torch.Tensor], int], DecodeState],
    prompts: Sequence[torch.Tensor],
    passages: Sequence[torch.Tensor],
    top_ns: Sequence[int],
) -> list[tuple[float, ...]]:
    """For each window, minus the place at which each passage is chosen (PE-Rank, section 3.3). Arguments as above.

    The last state scores the passages that are left; the best one, of equals the first in the window, is the next
    input. That is greedy generation over a vocabulary of n tokens, which stand in a matrix of their own: the model's
    embedding table is neither widened nor written. What is chosen stays on the device until all is.

    Args:
        prefill: reads the prompts, and can read so many positions more.
        top_ns: for each window, how many passages to choose; 0: all. Those that are left follow in the order of the
            last inner products, the best guess that costs nothing more: with 1, the order is that of `one_step`.
    """
    device, rows = prompts[0].device, torch.arange(len(prompts), device=prompts[0].device)
    sizes = [len(own) for own in passages]
    steps = [choices(n, top_n) for n, top_n in zip(sizes, top_ns, strict=True)]
    vocabulary = pad_sequence(list(passages), batch_first=True)  # (B, N, D)
    exact = vocabulary.double()
    used = torch.arange(max(sizes), device=device) >= torch.tensor(sizes, device=device)[:, None]  # (B, N)
    products, chosen = list[torch.Tensor](), list[torch.Tensor]()  # a step: (B, N) and (B,)
    reading: DecodeState | None = None
    for _ in range(max(steps)):  # windows that are done idle
        if reading is None:
            reading = prefill(prompts, max(steps) - 1)
        else:
            reading.decode_step(vocabulary[rows, chosen[-1]].to(prompts[0].dtype))
        products.append(_inner_products(exact, reading.outputs[:, None]))
        chosen.append(products[-1].masked_fill(used, -torch.inf).argmax(dim=1))  # of equals the first
        used[rows, chosen[-1]] = True
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
