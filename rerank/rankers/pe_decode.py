"""Decoding of PE-Rank: scores all passages in one step, or chooses one passage after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch.nn.utils.rnn import pad_sequence

from rerank.models.decode_state import DecodeState, UncachedDecodeState
from rerank.types import DecodeCost

#: B sequences to which a decode step adds a position each; `outputs` are the (B, D) states of their last positions.
State: TypeAlias = DecodeState | UncachedDecodeState


def one_step(states: torch.Tensor, passages: Sequence[torch.Tensor]) -> list[tuple[float, ...]]:
    """Returns log-softmax of h · eᵢ over the n passages eᵢ of each window, where h is the state of its last position.

    Args:
        states: (B, D), one per window.
        passages: (n, D) projected passages of each window.

    Returns:
        n log-probabilities, in nats, for each window.
    """
    return [
        tuple(torch.log_softmax(_inner_products(vectors, state), dim=0).tolist())
        for vectors, state in zip(passages, states, strict=True)
    ]


def dynamic(
    prefill: Callable[[Sequence[torch.Tensor], int], DecodeState],
    prompts: Sequence[torch.Tensor],
    passages: Sequence[torch.Tensor],
    top_ns: Sequence[int],
) -> list[tuple[tuple[float, ...], DecodeCost]]:
    """Returns minus the rank of each passage in the order of choice (PE-Rank, section 3.3), and the cost of decoding.

    The state of the last position scores the remaining passages; the best one (of equal ones the first in the window)
    is the input of the next step. That is greedy generation over a vocabulary of n tokens, which is a separate matrix:
    the embedding table of the model is neither resized nor written. All choices stay on the device until the last one.

    Args:
        prefill: reads prompts, and returns their state with memory for a number of decode steps.
        prompts: (T, D) input vectors of each window.
        passages: (n, D) projected passages of each window.
        top_ns: for each window, the number of passages to choose; 0: all. The others follow in the order of the last
            inner products, without further steps: with 1, the order is that of `one_step`.
    """
    device, rows = prompts[0].device, torch.arange(len(prompts), device=prompts[0].device)
    sizes = [len(vectors) for vectors in passages]
    steps = [choices(n, top_n) for n, top_n in zip(sizes, top_ns, strict=True)]
    vocabulary = pad_sequence(list(passages), batch_first=True)  # (B, N, D)
    exact = vocabulary.double()
    used = torch.arange(max(sizes), device=device) >= torch.tensor(sizes, device=device)[:, None]  # (B, N)
    products, chosen = list[torch.Tensor](), list[torch.Tensor]()  # per step: (B, N) and (B,)
    state: DecodeState | None = None
    start_s = 0.0
    for _ in range(max(steps)):  # finished windows stay in the batch, and their choices are ignored
        if state is None:
            state = prefill(prompts, max(steps))
            start_s = _now_s(device)
        else:
            state.decode_step(vocabulary[rows, chosen[-1]].to(prompts[0].dtype))
        products.append(_inner_products(exact, state.outputs[:, None]))
        chosen.append(products[-1].masked_fill(used, -torch.inf).argmax(dim=1))  # the first of equal ones
        used[rows, chosen[-1]] = True
    chosen_positions = [positions.tolist() for positions in chosen]  # (steps, B)
    decode_ms = (_now_s(device) - start_s) * 1000 if chosen else 0.0
    return [
        (
            _negative_ranks(
                [positions[window] for positions in chosen_positions[:count]],
                products[count - 1][window, :n].tolist() if count else [0.0] * n,
            ),
            DecodeCost(count, decode_ms),
        )
        for window, (count, n) in enumerate(zip(steps, sizes, strict=True))
    ]


def choice_scores(
    prefill: Callable[[Sequence[torch.Tensor], int], State],
    prompts: Sequence[torch.Tensor],
    passages: Sequence[torch.Tensor],
) -> list[list[tuple[float, ...]]]:
    """Returns the scores of all choices of dynamic decoding, as if each window's passages were chosen in their order.

    For a window of n passages these are n - 1 rows: the inner products of the remaining passages, minus their mean. The
    self-test compares them because they are continuous in the weights, while rounding may decide a choice between two
    similar passages, and so all later choices.

    Args:
        prefill, prompts: as for `dynamic`.
        passages: (n, D) projected passages of each window.
    """
    state, rows = prefill(prompts, max(map(len, passages))), [list[tuple[float, ...]]() for _ in passages]
    for step in range(max(map(len, passages)) - 1):  # finished windows stay in the batch
        if step:
            chosen = [vectors[min(step, len(vectors)) - 1] for vectors in passages]
            state.decode_step(torch.stack(chosen).to(prompts[0].dtype))
        for window_rows, vectors, output in zip(rows, passages, state.outputs, strict=True):
            if step < len(vectors) - 1:
                products = _inner_products(vectors[step:], output)
                window_rows.append(tuple((products - products.mean()).tolist()))
    return rows


def _now_s(device: torch.device) -> float:
    """Waits until the device has finished its work, which CUDA does asynchronously, and returns the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def choices(n: int, top_n: int) -> int:
    """Returns the number of choices among n passages: `top_n`, or all if it is 0. The last passage needs no choice."""
    return max(0, min(top_n or n, n - 1))


def _negative_ranks(chosen: Sequence[int], products: Sequence[float]) -> tuple[float, ...]:
    """Returns minus the rank of each of n passages: first the chosen ones, then the others by descending inner product.

    NaN if an inner product is not finite, because it has no order.
    """
    if not all(map(math.isfinite, products)):
        return (math.nan,) * len(products)
    others = sorted(set(range(len(products))).difference(chosen), key=lambda position: (-products[position], position))
    ranks = {position: rank for rank, position in enumerate([*chosen, *others])}
    return tuple(float(-ranks[position]) for position in range(len(products)))


def _inner_products(passages: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """(…, n, D) passages and (…, 1, D) or (D,) states → (…, n) inner products.

    Row by row in float64, so that a score depends neither on the passage's position nor on n: equal passages tie.
    """
    return (passages.double() * state.double()).sum(-1)
