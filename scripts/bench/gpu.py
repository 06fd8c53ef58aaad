"""Figures of a GPU: FIRST, packed windows, PE-Rank's loop, precisions, and the load of a service.

Weights are random, but for those of a folder that is given. Seconds are elapsed time, after the device has finished.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from rerank.client.client import AsyncRerankClient
from rerank.config import FirstModel, Precision, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.models.identifier_head import IdentifierHead
from rerank.models.last_token import LastTokenReader
from rerank.models.packing_check import make_last_token_reader
from rerank.models.precision import weights_dtype
from rerank.ports.server import running_server
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.rankers.pe_decode import dynamic, one_step
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.types import Window
from scripts.bench.models import MISTRAL_7B, QWEN3_0_6B, TINY, LlamaSize, llama, make_windows, write_checkpoint
from scripts.bench.rankers import PERMUTATION_TOKENS
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import PASSAGES
from scripts.random_requests import words

#: Lengths of the eight windows that are packed, as shares of the longest; published windows have some 2,000 tokens.
_LENGTHS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.4)
_FULL_TOKENS, _TINY_TOKENS = 2000, 40
#: Positions of a PE-Rank window before its passages are chosen.
_PE_POSITIONS = 30
#: Callers of the load.
_CALLERS = 16

_PRECISIONS: tuple[Precision, Precision] = ("float32", "bfloat16")


@dataclass(frozen=True)
class Proof:
    """The device, and the models that are measured on it; without a GPU they are tiny.

    Attributes:
        folder: for checkpoints.
        weights: folder of a causal LM; None: only random weights are measured.
    """

    device: torch.device
    folder: Path
    weights: Path | None

    @property
    def is_tiny(self) -> bool:
        return self.device.type != "cuda"

    @property
    def sizes(self) -> dict[str, LlamaSize]:
        return {"tiny": TINY} if self.is_tiny else {"0.6B": QWEN3_0_6B, "7B": MISTRAL_7B}

    @property
    def small(self) -> LlamaSize:
        return next(iter(self.sizes.values()))

    @property
    def tokens(self) -> int:
        return _TINY_TOKENS if self.is_tiny else _FULL_TOKENS

    def model(self, size: LlamaSize, precision: Precision = "bfloat16") -> Any:
        return llama(size, self.device, weights_dtype(self.device, precision))

    def windows(self, vocabulary: int) -> list[torch.Tensor]:
        """Random token ids of eight windows, the longest first."""
        lengths = [int(share * self.tokens) for share in _LENGTHS]
        return [torch.randint(vocabulary, (length,), device=self.device) for length in lengths]

    def seconds(self, variants: Mapping[str, Callable[[], object]]) -> Values:
        """Elapsed seconds of each variant, until the device has finished."""

        def finished(run: Callable[[], object]) -> None:
            run()
            if self.device.type == "cuda":
                torch.cuda.synchronize()

        timed = {name: partial(finished, run) for name, run in variants.items()}
        return time_in_turns(timed, 1 if self.is_tiny else 5, time.perf_counter)


def measure_matrices(proof: Proof) -> Values:
    """The rate of a matrix product, in TFLOP/s: the device does no linear layer faster."""
    n = 256 if proof.is_tiny else 8192
    left, right = (torch.randn(n, n, device=proof.device, dtype=weights_dtype(proof.device, "bfloat16")) for _ in "ab")
    seconds = proof.seconds({"": lambda: left @ right})[""]
    return {"matrix product, TFLOP/s": [2 * n**3 / second / 1e12 for second in seconds]}


def measure_first(proof: Proof) -> Values:
    """FIRST on a window and on eight, against generating, logits at all positions, padding, and the floor."""
    rate = 1e12 * max(measure_matrices(proof)["matrix product, TFLOP/s"])
    values: Values = {}
    for name, size in proof.sizes.items():
        values |= {f"{name}: {figure}": seconds for figure, seconds in _measure_size(proof, size, rate).items()}
    return values


@torch.inference_mode()
def _measure_size(proof: Proof, size: LlamaSize, rate: float) -> Values:
    """`rate` is that of a matrix product in FLOP/s; the floor is 2 x parameters x tokens at that rate."""
    model, windows = proof.model(size), proof.windows(size.vocabulary)
    parameters = sum(parameter.numel() for parameter in model.model.layers.parameters())
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    rows, masks = padded(windows), padded([torch.ones_like(window) for window in windows])
    options = {"max_new_tokens": 4 if proof.is_tiny else PERMUTATION_TOKENS, "do_sample": False, "pad_token_id": 0}
    one = {"input_ids": rows[:1], "attention_mask": masks[:1]}
    others = proof.seconds(
        {
            "generating the permutation / FIRST": lambda: model.generate(**one, **options),
            "logits at all positions / FIRST": lambda: model(**one, use_cache=False),
            "eight windows padded / packed": lambda: model(rows, masks, use_cache=False, logits_to_keep=1),
        }
    )
    reader = _first_reader(model)
    ours = proof.seconds({"FIRST": lambda: reader.read(windows[:1]), "packed": lambda: reader.read(windows)})
    tokens = {"FIRST": len(windows[0]), "packed": sum(map(len, windows))}
    return {
        "FIRST, ms": _ms(ours["FIRST"]),
        **{name: ratios(seconds, ours[name.split()[-1]]) for name, seconds in others.items()},
        **{f"{name} / floor": [s * rate / (2 * parameters * tokens[name]) for s in ours[name]] for name in ours},
    }


def _first_reader(model: Any) -> LastTokenReader:
    model.set_output_embeddings(IdentifierHead(model.get_output_embeddings(), range(PASSAGES)).to(model.device))
    return make_last_token_reader(model)


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1000 * second for second in seconds]


@torch.inference_mode()
def measure_pe_rank(proof: Proof) -> Values:
    """PE-Rank's loop over a cache that is allocated at prefill, against transformers' growing one, and one step."""
    model = proof.model(proof.small).model
    shape = (8, _PE_POSITIONS, proof.small.hidden)
    prompts = list(torch.randn(shape, device=proof.device, dtype=model.dtype))
    passages = [prompt[-PASSAGES:] for prompt in prompts]

    def loops(reader: LastTokenReader) -> Values:
        return proof.seconds(
            {
                f"{n} window{'s' * (n > 1)}": partial(dynamic, reader.prefill, prompts[:n], passages[:n], [0] * n)
                for n in (1, 8)
            }
        )

    growing = loops(LastTokenReader(model))
    reader = make_last_token_reader(model)
    static = loops(reader)
    one = proof.seconds({n: partial(one_step, reader, prompts[: int(n[0])], passages[: int(n[0])]) for n in static})
    values: Values = {}
    for n, seconds in static.items():
        values[f"{n}: loop over a static cache, ms"] = _ms(seconds)
        values[f"{n}: growing cache / static cache"] = ratios(growing[n], seconds)
        values[f"{n}: loop / one step"] = ratios(seconds, one[n])
    return values


@torch.inference_mode()
def measure_precisions(proof: Proof) -> Values:
    """FIRST on eight packed windows in float32 and in bfloat16."""
    windows, seconds = proof.windows(proof.small.vocabulary), list[list[float]]()
    for precision in _PRECISIONS:
        read = _first_reader(proof.model(proof.small, precision)).read
        seconds += proof.seconds({precision: partial(read, windows)}).values()
    return {"eight windows, float32 / bfloat16": ratios(*seconds)}


def measure_weights(proof: Proof) -> Values:
    """FIRST with the given weights, in both precisions: time, orders and scores."""
    if proof.weights is None:
        return {}
    exact, fast = (
        FirstRanker(proof.weights, "first", device=str(proof.device), precision=precision) for precision in _PRECISIONS
    )
    windows = []
    for window in make_windows(Encoder(device="cpu"), 8, PASSAGES, words=4 if proof.is_tiny else None):
        prepared = exact.prepare(window.query, window.passages)
        windows.append(Window(prepared.query, prepared.passages))
    pairs = list(zip(rank_windows(exact, windows), rank_windows(fast, windows), strict=True))
    differences = [abs(x - y) for a, b in pairs for x, y in zip(a.scores, b.scores, strict=True)]
    return {
        "eight windows, bfloat16, ms": _ms(proof.seconds({"": lambda: rank_windows(fast, windows)})[""]),
        "equal orders in both precisions, share": [sum(a.permutation == b.permutation for a, b in pairs) / len(pairs)],
        "difference of scores, greatest": [max(differences)],
    }


def measure_load(proof: Proof) -> Values:
    """16 callers without pauses through gRPC, of 20 passages of 300 characters: requests per second, and latencies."""
    encoder = Encoder(device="cpu")
    folder = write_checkpoint(proof.folder / "first", encoder, proof.small)
    model = FirstModel(name="first", ranker="first", path=folder)
    ranker = FirstRanker(folder, "first", device=str(proof.device))
    config = ServiceConfig(listen="127.0.0.1:0", models=(model,))
    reranker = AsyncReranker(config, encoder, None, ModelRegistry(config.models, {"first": ranker}))
    return asyncio.run(_load(proof, reranker))


async def _load(proof: Proof, reranker: AsyncReranker) -> Values:
    draw, latencies_ms = random.Random(0), list[float]()
    characters, seconds = (30, 0.5) if proof.is_tiny else (300, 30.0)
    requests = cycle([(words(draw, 30), [words(draw, characters) for _ in range(PASSAGES)]) for _ in range(50)])
    async with running_server(reranker) as server, AsyncRerankClient(server.address) as client:
        end_s = time.perf_counter() + seconds

        async def ask_again_and_again() -> None:
            while (start_s := time.perf_counter()) < end_s:
                query, passages = next(requests)
                await client.rerank(query, passages)
                latencies_ms.append(1000 * (time.perf_counter() - start_s))

        await asyncio.gather(*(ask_again_and_again() for _ in range(_CALLERS)))
    p50, p99 = (quantiles(latencies_ms, n=100, method="inclusive")[p - 1] for p in (50, 99))
    return {"requests/s": [len(latencies_ms) / seconds], "p50, ms": [p50], "p99, ms": [p99]}
