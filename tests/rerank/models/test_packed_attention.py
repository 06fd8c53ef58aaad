"""Packed attention against the formula, written out for one sequence at a time."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rerank.models.packed_attention import Pack, packed_attention

LENGTHS = (5, 1, 12, 3)
TOTAL = sum(LENGTHS)
#: Scores of a few units, so that the bound of 2 below bends them.
SPREAD = 3.0


def heads(n: int, seed: int) -> torch.Tensor:
    return SPREAD * torch.randn(1, n, TOTAL, 8, generator=torch.Generator().manual_seed(seed))


def by_formula(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """(1, T, H, D), position by position in float64."""
    groups = query.shape[1] // key.shape[1]
    out = torch.zeros(1, TOTAL, query.shape[1], 8, dtype=torch.float64)
    starts = [0, *itertools.accumulate(LENGTHS)]
    for start, end in itertools.pairwise(starts):
        for place in range(start, end):
            first = start if window is None else max(start, place - window + 1)
            for head in range(query.shape[1]):
                own = key[0, head // groups, first : place + 1].double()
                scores = own @ query[0, head, place].double() / math.sqrt(8)
                scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
                weights = scores.exp()
                rest = 0.0 if sinks is None else sinks[head].double().exp()
                shares = weights / (weights.sum() + rest)
                out[0, place, head] = shares @ value[0, head // groups, first : place + 1].double()
    return out


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["no sinks", "sinks"])
def test_packed_attention_is_the_formula(
    kv_heads: int, window: int | None, softcap: float | None, sinks: torch.Tensor | None
) -> None:
    query, key, value = heads(4, 0), heads(kv_heads, 1), heads(kv_heads, 2)
    pack = Pack(LENGTHS, torch.device("cpu"))
    options = {"scaling": 8**-0.5, "sliding_window": window, "softcap": softcap, "s_aux": sinks, "pack": pack}
    expected = by_formula(query, key, value, window, softcap, sinks)
    attended, weights = packed_attention(torch.nn.Module(), query, key, value, None, **options)
    assert weights is None
    torch.testing.assert_close(attended.double(), expected, atol=1e-5, rtol=0)
    read, _ = packed_attention(torch.nn.Module(), query, key, value, None, last_only=True, **options)
    torch.testing.assert_close(read[:, pack.last].double(), expected[:, pack.last], atol=1e-5, rtol=0)


def test_pack_says_where_sequences_end() -> None:
    pack = Pack((3, 1, 2), torch.device("cpu"))
    assert pack.last.tolist() == [2, 3, 5]
    assert pack.position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert (pack.cu_seqlens.tolist(), pack.longest, len(pack)) == ([0, 3, 4, 6], 3, 6)


def test_pack_counts_the_layers_that_read_it() -> None:
    pack = Pack(LENGTHS, torch.device("cpu"))
    for window in (None, 4, None):
        packed_attention(torch.nn.Module(), heads(4, 0), heads(4, 1), heads(4, 2), None, None, window, pack=pack)
    assert (pack.calls, pack.windowed) == (3, 1)


@pytest.mark.parametrize(
    ("pack", "mask", "batch"),
    [
        (None, None, 1),
        (Pack(LENGTHS, torch.device("cpu")), torch.ones(1, 1, TOTAL, TOTAL), 1),
        (Pack(LENGTHS, torch.device("cpu")), None, 2),
        (Pack(LENGTHS[1:], torch.device("cpu")), None, 1),
    ],
    ids=["without a pack", "with a mask", "with a batch", "with a cache"],
)
def test_call_that_is_not_packed_is_refused(pack: Pack | None, mask: torch.Tensor | None, batch: int) -> None:
    query = heads(4, 0).expand(batch, -1, -1, -1)
    with pytest.raises(ValueError, match="wants one row"):
        packed_attention(torch.nn.Module(), query, query, query, mask, pack=pack)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("window", [None, 4])
def test_kernel_of_the_gpu_gives_what_the_cpu_gives(kv_heads: int, window: int | None) -> None:
    query, key, value = (heads(n, seed)[..., :8].bfloat16() for seed, n in enumerate((4, kv_heads, kv_heads)))
    on_cpu, on_gpu = Pack(LENGTHS, torch.device("cpu")), Pack(LENGTHS, torch.device("cuda"))
    expected, _ = packed_attention(torch.nn.Module(), query, key, value, None, None, window, pack=on_cpu)
    found, _ = packed_attention(
        torch.nn.Module(), query.cuda(), key.cuda(), value.cuda(), None, None, window, pack=on_gpu
    )
    torch.testing.assert_close(found.cpu(), expected, atol=0.1, rtol=0.02)
