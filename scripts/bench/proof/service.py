"""A service over gRPC in this process, whose models have the shape of published ones, with one and many callers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

import torch

from rerank.config import ServiceConfig
from rerank.models.linear_layers import has_float8
from rerank.ports.server import running_server
from rerank.reranking.reranker import load_reranker
from scripts.bench.proof.callers import CallTimes, call
from scripts.bench.proof.setting import Proof
from scripts.bench.proof.table import Row, rate, timed
from scripts.bench.workload import PASSAGES

#: Timed calls of one caller, and of one caller whose calls take a second.
_CALLS, _SLOW = 5, 3


class Calls:
    """Calls of a service with the lists of a proof, one after the other."""

    def __init__(self, proof: Proof, address: str) -> None:
        self._proof, self._address, self._lists = proof, address, cycle(proof.lists)

    def measure(self, callers: int, calls: int, depth: int = 100) -> CallTimes:
        """Sends calls, after one of each caller that warms up; on a CPU at most eight."""
        if self._proof.is_tiny:
            return self._send(callers, min(calls, 8), depth)
        self._send(callers, callers, depth)
        return self._send(callers, calls, depth)

    def _send(self, callers: int, calls: int, depth: int) -> CallTimes:
        lists = [(query, texts[:depth]) for query, texts in islice(self._lists, calls)]
        return self._proof.callers.submit(call, self._address, lists, callers).result()


@contextmanager
def _service(proof: Proof, ranker: str, **model: object) -> Iterator[Calls]:
    """A service of one model, until the block ends."""
    settings = {
        "listen": "127.0.0.1:0",
        "encoder": {"name": str(proof.encoder), "pooling": "mean"},
        "engine": {"text_vector_cache_bytes": 0},
        "models": [{"name": "measured", "ranker": ranker, **model}],
        "drain_s": 0,
    }
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        with proof.weights_on_device():
            server = running_server(load_reranker(ServiceConfig.model_validate(settings)))
        address = wait(server.__aenter__()).address
        try:
            yield Calls(proof, address)
        finally:
            wait(server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        proof.free_memory()


def prove_first(proof: Proof) -> Iterator[Row]:
    """FIRST with 7B: its start, one window, a list, and eight and 32 callers."""
    size, start_s = proof.size("7B"), time.monotonic()
    with _service(proof, "first", template="first", path=str(proof.checkpoint("7B", size))) as calls:
        yield timed("FIRST 7B is ready; no weights are read from files", 1000 * (time.monotonic() - start_s))
        if not proof.is_tiny:
            free, total = torch.cuda.mem_get_info()
            yield Row("GPU memory with FIRST 7B", f"{(total - free) / 2**30:.1f} GiB of {total / 2**30:.1f}")
        window = calls.measure(1, 2 * _CALLS, PASSAGES)
        what = f"FIRST 7B, one window of {PASSAGES} passages ({window.tokens:,.0f} tokens), one caller, p50"
        yield timed(what, window.p50_ms, proof.floor_ms(size, window.tokens), window.note)
        load = calls.measure(1, _CALLS)
        yield timed(_list(proof, "FIRST 7B", load), load.p50_ms, proof.floor_ms(size, load.tokens), load.note)
        for callers, count in ((8, 16), (32, 32)):
            load = calls.measure(callers, count)
            what, note = f"FIRST 7B, {proof.depth} passages, {callers} callers", f", p50 {load.p50_ms:,.0f} ms"
            yield rate(what, load.tokens_per_s, proof.most_tokens_per_s(size), note=note)


def prove_pe_rank(proof: Proof) -> Iterator[Row]:
    """PE-Rank with 7B over texts: in one step with one and sixteen callers, and dynamic decoding."""
    size = proof.size("7B")
    model: dict[str, object] = {"template": "pe_rank_text", "path": str(proof.checkpoint("7B", size))}
    with _service(proof, "pe-rank", decoding="one_step", **model) as calls:
        load = calls.measure(1, 2 * _CALLS)
        floor_ms = proof.floor_ms(size, load.tokens)
        yield timed(_list(proof, "PE-Rank 7B, one step", load), load.p50_ms, floor_ms, load.note)
        load = calls.measure(16, 48)
        what, note = f"PE-Rank 7B, one step, {proof.depth} passages, 16 callers", f", p50 {load.p50_ms:,.0f} ms"
        yield rate(what, load.queries_per_s, 1000 / floor_ms, "queries", note)
    with _service(proof, "pe-rank", decoding="dynamic", **model) as calls:
        load = calls.measure(1, _SLOW)
        steps = load.median_of(lambda execution: execution.decode_tokens)
        floor_ms = proof.floor_ms(size, load.tokens) + steps * proof.read_ms(size)
        name = f"PE-Rank 7B, dynamic ({steps:.0f} steps)"
        yield timed(_list(proof, name, load), load.p50_ms, floor_ms, load.note)


def prove_default(proof: Proof) -> Iterator[Row]:
    """The default's formula with an encoder of its shape, without the sparse encoder, whose package may be missing."""
    with _service(proof, "fusion", sparse_weight=0.0) as calls:
        load = calls.measure(1, 2 * _CALLS)
        yield timed(f"default, {proof.depth} passages, one caller, p50", load.p50_ms, note=load.note)
        load = calls.measure(16, 48)
        note = f"{load.queries_per_s:.1f} queries/s, p50 {load.p50_ms:,.0f} ms"
        yield Row(f"default, {proof.depth} passages, 16 callers", note)


def prove_other_models(proof: Proof) -> Iterator[Row]:
    """FIRST with 7B in float8, where the device has it, and with the weights that are given or a model of 135M."""
    large, small = proof.size("7B"), proof.size("135M")
    models = [("FIRST 7B in float8", proof.checkpoint("7B", large), large, "float8")] * has_float8(proof.device)
    models.append(("FIRST 135M", proof.weights or proof.checkpoint("135M", small), small, "auto"))
    for name, path, size, precision in models:
        with _service(proof, "first", path=str(path), precision=precision) as calls:
            load = calls.measure(1, _CALLS)
            is_given, floor_ms = path == proof.weights, proof.floor_ms(size, load.tokens)
            what = _list(proof, path.name if is_given else name, load)
            yield timed(what, load.p50_ms, 0.0 if is_given else floor_ms, load.note)


def prove_generation(proof: Proof) -> Iterator[Row]:
    """A window whose order 7B writes token by token."""
    size = proof.size("7B")
    with _service(proof, "generation", template="first", path=str(proof.checkpoint("7B", size))) as calls:
        load = calls.measure(1, _SLOW, PASSAGES)
        token_ms = load.median_of(lambda execution: execution.decode_ms / max(1, execution.decode_tokens - 1))
        yield timed("generation 7B, a written token (floor: to read the weights)", token_ms, proof.read_ms(size))


def _list(proof: Proof, name: str, load: CallTimes) -> str:
    return f"{name}, {proof.depth} passages ({load.tokens:,.0f} tokens), one caller, p50"
