"""A service as a separate process, over gRPC: models of 7B's shape and a small one, with one and many callers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch

from rerank import RerankClient
from rerank.v1 import rerank_pb2 as pb
from scripts.bench.models import LlamaSize, llama
from scripts.bench.proof.sections import Row, rate, timed
from scripts.bench.proof.setting import PASSAGES, Proof, Texts, attempted, layer_weights
from scripts.service import running_service

#: How long a call may take, its model's load included.
_TIMEOUT_S = 100
#: Timed calls of one caller, of eight, of sixteen with PE-Rank, and of slow models.
_ONE, _EIGHT, _SIXTEEN, _SLOW = 5, 16, 48, 3

Execution: TypeAlias = pb.Execution


@dataclass(frozen=True)
class CallTimes:
    """The calls of some callers; each caller sends its next one when it has the answer."""

    latencies_ms: list[float]
    executions: list[Execution]
    elapsed_s: float

    @property
    def p50_ms(self) -> float:
        return median(self.latencies_ms)

    @property
    def tokens_per_s(self) -> float:
        return sum(execution.tokens for execution in self.executions) / self.elapsed_s

    @property
    def tokens(self) -> float:
        """Tokens of a call that the model reads before it writes."""
        return self.median_of(lambda execution: execution.tokens - execution.decode_tokens)

    @property
    def note(self) -> str:
        """The parts of the time of a call. The client, the socket and the ports take what the parts leave."""
        parts = {
            "model": lambda execution: execution.model_ms,
            "tokenizing and vectors": lambda execution: execution.prepare_ms,
            "waiting": lambda execution: execution.queue_ms,
            "all in the ranker": lambda execution: execution.total_ms,
        }
        return "".join(f", {name} {self.median_of(part):,.0f} ms" for name, part in parts.items())

    def median_of(self, figure: Any) -> float:
        return float(median(map(figure, self.executions)))


def prove_service(proof: Proof) -> Iterator[Row]:
    """Rows of the targets; a model is warmed up by a call, and eight callers by one each, before they are timed."""
    start_s = time.monotonic()
    large = proof.checkpoint("7B", proof.size("7B"))
    print(f"wrote random weights in {time.monotonic() - start_s:.0f} s", flush=True)
    small = proof.weights or proof.checkpoint("135M", proof.size("135M"))
    of_large, on_request = {"path": str(large)}, {"load": "request"}
    pe_rank = {"ranker": "pe-rank", "template": "pe_rank_text"}
    settings: dict[str, object] = {
        "encoder": {"name": str(proof.encoder), "pooling": "mean"},
        "engine": {"text_vector_cache_bytes": 0},
        "http": None,
        "models": [
            {"name": "first", "ranker": "first", "template": "first", **of_large},
            {"name": "pe", **pe_rank, "decoding": "one_step", **of_large, **on_request},
            {"name": "pe-dynamic", **pe_rank, "decoding": "dynamic", **of_large, **on_request},
            {"name": "generation", "ranker": "generation", "template": "first", **of_large, **on_request},
            {"name": "small", "ranker": "first", "path": str(small), **on_request},
        ],
    }
    start_s = time.monotonic()
    with running_service(settings, log=proof.out / "serve.log") as service:
        yield Row("start of a service with 7B, until it listens", f"{time.monotonic() - start_s:.1f} s")
        yield from attempted("GPU memory", partial(_memory, proof))
        calls = Calls(proof, service.address)
        for what, measure in (
            ("FIRST 7B", _first),
            ("PE-Rank 7B", _pe_rank),
            ("FIRST 135M", _small),
            ("generation 7B", _generation),
            ("PE-Rank 7B, dynamic", _dynamic),
            ("FIRST 7B, 32 callers", _first_32_callers),
        ):
            yield from attempted(what, partial(measure, proof, calls))
    yield from _warnings(service.log)


class Calls:
    """Calls of a service with the lists of a proof, one after the other."""

    def __init__(self, proof: Proof, target: str) -> None:
        self._is_tiny, self._target = proof.is_tiny, target
        self._lists = cycle(proof.lists)

    def measure(self, model: str, callers: int, calls: int, depth: int = 100, **options: Any) -> CallTimes:
        """Sends calls, on a CPU one for each caller at most."""
        lists = list(islice(self._lists, min(calls, callers) if self._is_tiny else calls))
        with RerankClient(self._target) as client, ThreadPoolExecutor(callers) as threads:

            def call(texts: Texts) -> tuple[float, Execution]:
                start_s = time.perf_counter()
                reply = client.rerank(texts[0], texts[1][:depth], timeout_s=_TIMEOUT_S, model=model, **options)
                return 1000 * (time.perf_counter() - start_s), reply.execution

            start_s = time.perf_counter()
            found = list(threads.map(call, lists))
            elapsed_s = time.perf_counter() - start_s
        return CallTimes([ms for ms, _ in found], [execution for _, execution in found], elapsed_s)


def _first(proof: Proof, calls: Calls) -> Iterator[Row]:
    weights = _weights(proof.size("7B"))
    calls.measure("first", 1, 1)
    window = calls.measure("first", 1, 2 * _ONE, PASSAGES)
    yield timed(
        f"FIRST 7B, one window of {PASSAGES} passages ({window.tokens:,.0f} tokens), one caller, p50",
        *(window.p50_ms, proof.floor_ms(weights, window.tokens), window.note),
    )
    yield _one_caller(proof, "FIRST 7B", weights, calls.measure("first", 1, _ONE))
    calls.measure("first", 8, 8)
    yield _many_callers(proof, calls, 8, _EIGHT)


def _first_32_callers(proof: Proof, calls: Calls) -> Iterator[Row]:
    yield _many_callers(proof, calls, 32, 32)


def _many_callers(proof: Proof, calls: Calls, callers: int, count: int) -> Row:
    load, most = calls.measure("first", callers, count), proof.most_tokens_per_s(_weights(proof.size("7B")))
    what = f"FIRST 7B, {proof.depth} passages, sliding, {callers} callers"
    return rate(what, load.tokens_per_s, most, f", p50 {load.p50_ms:,.0f} ms")


def _small(proof: Proof, calls: Calls) -> Iterator[Row]:
    calls.measure("small", 1, 1)
    name = proof.weights.name if proof.weights else "FIRST 135M"
    weights = 0 if proof.weights else _weights(proof.size("135M"))
    yield _one_caller(proof, name, weights, calls.measure("small", 1, _ONE))


def _one_caller(proof: Proof, name: str, weights: int, load: CallTimes) -> Row:
    what = f"{name}, {proof.depth} passages ({load.tokens:,.0f} tokens), sliding, one caller, p50"
    return timed(what, load.p50_ms, proof.floor_ms(weights, load.tokens), load.note)


def _pe_rank(proof: Proof, calls: Calls) -> Iterator[Row]:
    weights = _weights(proof.size("7B"))
    calls.measure("pe", 1, 1)
    one = calls.measure("pe", 1, 2 * _ONE)
    what = f"PE-Rank 7B, {proof.depth} passages as texts, one step"
    floor_ms = proof.floor_ms(weights, one.tokens)
    yield timed(f"{what} ({one.tokens:,.0f} positions), one caller, p50", one.p50_ms, floor_ms, one.note)
    calls.measure("pe", 8, 8)
    many = calls.measure("pe", 16, _SIXTEEN)
    queries_per_s, most = len(many.executions) / many.elapsed_s, 1000 / floor_ms
    yield Row(
        f"{what}, 16 callers",
        f"{queries_per_s:.1f} queries/s, p50 {many.p50_ms:,.0f} ms",
        *(f"{most:,.1f} queries/s", f"{most / queries_per_s:.2f}"),
    )


def _generation(proof: Proof, calls: Calls) -> Iterator[Row]:
    calls.measure("generation", 1, 1, PASSAGES)
    load = calls.measure("generation", 1, _SLOW, PASSAGES)
    written = load.median_of(lambda execution: execution.decode_tokens)
    token_ms = load.median_of(lambda execution: execution.decode_ms / max(1, execution.decode_tokens - 1))
    floor_ms = proof.read_ms(_weights(proof.size("7B")))
    yield timed("generation 7B, a written token (floor: to read the weights)", token_ms, floor_ms)
    yield timed(f"generation 7B, one window of {PASSAGES} passages ({written:.0f} tokens written), p50", load.p50_ms)


def _dynamic(proof: Proof, calls: Calls) -> Iterator[Row]:
    weights = _weights(proof.size("7B"))
    calls.measure("pe-dynamic", 1, 1)
    load = calls.measure("pe-dynamic", 1, _SLOW)
    steps = load.median_of(lambda execution: execution.decode_tokens)
    floor_ms = proof.floor_ms(weights, load.tokens) + steps * proof.read_ms(weights)
    yield timed(
        f"PE-Rank 7B, {proof.depth} passages as texts, dynamic ({steps:.0f} steps), one caller, p50",
        *(load.p50_ms, floor_ms, load.note),
    )


def _memory(proof: Proof) -> Iterator[Row]:
    if not proof.is_tiny:
        free, total = torch.cuda.mem_get_info()
        yield Row("GPU memory with FIRST 7B loaded", f"{(total - free) / 2**30:.1f} GiB of {total / 2**30:.1f}")


def _warnings(log: Path) -> Iterator[Row]:
    """A row for each warning of the service, such as layers that could not be compiled."""
    lines = log.read_text(encoding="utf-8").splitlines()
    warnings = dict.fromkeys(line for line in lines if " WARNING " in line or " ERROR " in line)
    for line in islice(warnings, 5):
        yield Row("the service's log", line.replace("|", "/")[:300])


def _weights(size: LlamaSize) -> int:
    return layer_weights(llama(size, "meta"))
