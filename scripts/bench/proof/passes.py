"""The pass alone: models of two sizes on one window and on eight, ours and transformers' plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from rerank.models.last_token import IdentifierHead, LastTokenReader
from rerank.models.linear_layers import has_float8, use_float8
from scripts.bench.proof.sections import Row, timed
from scripts.bench.proof.setting import PASSAGES, Proof, attempted, layer_weights

#: Lengths of eight unlike windows, as shares of the longest; published windows have some 2,000 tokens.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.4)
#: Tokens that are written after a window, one by one.
_WRITTEN = 16


def prove_passes(proof: Proof) -> Iterator[Row]:
    """Rows of the pass of 0.6B and of 7B, and of 7B in float8 where the device has it."""
    for name in ("0.6B", "7B"):
        yield from attempted(f"{name}, the plain pass", partial(_plain, proof, name))
        proof.free_memory()
        yield from attempted(f"{name}, our pass", partial(_ours, proof, name))
        proof.free_memory()
    if has_float8(proof.torch_device):
        yield from attempted("7B in float8", partial(_ours, proof, "7B", in_float8=True))


def _plain(proof: Proof, name: str) -> Iterator[Row]:
    model = proof.model(proof.size(name))
    yield from _rows(proof, f"{name}, transformers", layer_weights(model), partial(_read_plainly, model))


@torch.inference_mode()
def _read_plainly(model: Any, windows: list[torch.Tensor]) -> object:
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    masks = pad([torch.ones_like(window) for window in windows])
    return model(pad(windows), masks, use_cache=False, logits_to_keep=1)


def _ours(proof: Proof, name: str, in_float8: bool = False) -> Iterator[Row]:
    model = proof.model(proof.size(name))
    weights = layer_weights(model)
    model.set_output_embeddings(IdentifierHead(model.get_output_embeddings(), range(PASSAGES)).to(model.device))
    if in_float8:
        use_float8(model)
    reader = LastTokenReader(model)
    name = f"{name} in float8" if in_float8 else name
    yield from _rows(proof, f"{name}, ours", weights, reader.read)
    yield timed(
        f"{name}, ours: a written token (floor: to read the weights in bfloat16)",
        *(_written_ms(proof, reader), proof.read_ms(weights)),
    )


def _rows(proof: Proof, name: str, weights: int, read: Callable[[list[torch.Tensor]], object]) -> Iterator[Row]:
    longest = 40 if proof.is_tiny else 2000
    cases = {
        f"one window of {longest:,} tokens": [longest],
        f"eight windows of {longest:,}": [longest] * 8,
        f"eight windows of {longest * min(_SHARES):,.0f} to {longest:,}": [int(share * longest) for share in _SHARES],
    }
    for what, lengths in cases.items():
        windows = [torch.randint(100, (length,), device=proof.torch_device) for length in lengths]
        yield timed(f"{name}: {what}", proof.ms(partial(read, windows)), proof.floor_ms(weights, sum(lengths)))


@torch.inference_mode()
def _written_ms(proof: Proof, reader: LastTokenReader) -> float:
    """The time of a decode step after a window; the first two, which capture kernels, are left out."""
    window: Any = torch.randint(100, (40 if proof.is_tiny else 2000,), device=proof.torch_device)
    state = reader.prefill([window], _WRITTEN + 2)
    written = torch.zeros(1, dtype=torch.long, device=proof.torch_device)
    return proof.ms(lambda: state.decode_step(written), repeats=_WRITTEN, warm_up=2)
