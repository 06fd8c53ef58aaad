"""Proof of a GPU in four minutes: measures what matters of the service and the trainings, and writes a table.

    scripts/prove_on_gpu.sh OUT [WEIGHTS] [--requests FILE] [--section NAME]...

Writes OUT/gpu.md after each row, so that what was measured stays if the time runs out, and the log of train-first next
to it. Weights are random and made on the device, but for a folder that is given. Without a GPU all models are tiny:
that shows only that the proof runs. One process does all but the callers' part, so that libraries are imported once; an
error of CUDA leaves the GPU unusable for it, and all later sections fail.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rerank_training.commands import train_first
from rerank_training.first.objective import FirstObjective
from rerank_training.lists.training_list import TrainingList, write_lists
from rerank_training.trainer.gpu import CompiledLayers
from rerank_training.trainer.losses import rank_loss_named
from scipy.stats import kendalltau

from rerank.commands.run import quiet_libraries, run
from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.models.linear_layers import has_float8
from rerank.ports.server import running_server
from rerank.rankers.self_test import tolerance
from rerank.reranking.reranker import load_reranker
from rerank.types import Passage, Query
from rerank.util.many import EventLoopThread
from scripts.bench.models import LlamaSize, llama
from scripts.bench.proof import START_S
from scripts.bench.proof.callers import Calls, Texts, call
from scripts.bench.proof.models import RandomModels, layer_weights
from scripts.bench.proof.table import Table
from scripts.bench.workload import PASSAGES, Workload

#: Characters of a passage for tiny models.
_TINY_CHARACTERS = 40
#: Timed calls of one caller, and of one caller whose calls take a second.
_CALLS, _SLOW = 5, 3
#: Steps of `train-first` and the windows of each; layers are compiled in the first steps, which are not counted.
_STEPS, _WINDOWS, _WARM_UP = 10, 4, 3
#: FLOP for each weight and token of a training: a pass and its gradients; or with checkpoints the pass twice, and no
#: gradients of frozen weights.
_TRAINING_FLOP = 6
#: float8 (e4m3) rounds the operands of a linear layer by up to 2^-4 of their size, so that its outputs are wrong by
#: some .037 of theirs, and so is the sum of all layers: twice as much as in bfloat16 (`self_test.BFLOAT16_TOLERANCE`),
#: before layers amplify it. Unrelated scores differ by 1.4 deviations.
_FLOAT8_BOUND = 0.7

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="Folder for gpu.md and the log.")],
    weights: Annotated[
        Path | None, typer.Argument(help="Folder of a FIRST model or another causal LM that is measured, too.")
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(help="RankLLM request file (JSONL), whose first 43 lists are read; default: random words."),
    ] = None,
    section: Annotated[list[str] | None, typer.Option(help="A section to run, default: all. Repeatable.")] = None,
) -> None:
    """Measure, and write a table of what was found; the exit code is 1 if something failed."""
    if unknown := [name for name in section or () if name not in SECTIONS]:
        raise ConfigError(f"--section {' '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    out.mkdir(parents=True, exist_ok=True)
    table = Table(out.absolute() / "gpu.md")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for package in ("rerank", "rerank_training"):
        logging.getLogger(package).addHandler(table)
    quiet_libraries()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spawn = multiprocessing.get_context("spawn")  # a fork could not run beside CUDA
    with tempfile.TemporaryDirectory(prefix="prove-on-gpu-") as folder, ProcessPoolExecutor(1, spawn) as callers:
        proof = Proof(device, Path(folder), table, callers, weights, requests)
        table.set_facts(_facts(proof))
        for name, (prove, until_s) in SECTIONS.items():
            if name in (section or SECTIONS):
                with table.section(name, until_s):
                    prove(proof)
                proof.free_memory()
    print(f"in {time.monotonic() - START_S:.0f} s: {table.path}", flush=True)
    if table.has_failed:
        raise typer.Exit(1)


def _facts(proof: Proof) -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or os.environ.get("COMMIT") or "unknown"
    name = "CPU: tiny models, no proof" if proof.is_tiny else torch.cuda.get_device_name()
    return (
        f"{name}; torch {torch.__version__}, transformers {version('transformers')}; commit {commit}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. A large matrix product does {proof.flop_per_s / 1e12:,.3g} TFLOP/s, "
        f"a copy in memory {proof.bytes_per_s / 1e9:,.4g} GB/s. Floor: 2 FLOP for each weight of the layers and token, "
        "in a training 6, at the rate of the product. Each model is warmed up by a call before it is timed."
    )


@dataclass(frozen=True)
class Proof:
    """The device and its rates, and the models and texts of all sections.

    Attributes:
        device: cuda or cpu, where all models are tiny.
        folder: for models.
        table: of the figures.
        callers: a process without torch, for the callers of services.
        weights: folder of a FIRST model or another causal LM that is measured, too; None: only random weights are.
        requests: RankLLM request file with queries and passages; None: random words.
    """

    device: torch.device
    folder: Path
    table: Table
    callers: ProcessPoolExecutor
    weights: Path | None = None
    requests: Path | None = None

    @property
    def is_tiny(self) -> bool:
        return self.device.type == "cpu"

    @property
    def depth(self) -> int:
        """Passages of a list."""
        return PASSAGES + 10 if self.is_tiny else 100

    @cached_property
    def lists(self) -> list[Texts]:
        """Queries and passages. Raises: ValueError if no list of the requests is long enough."""
        found = Workload(self.folder, self.requests, self.is_tiny, repeats=1).lists
        longest = _TINY_CHARACTERS if self.is_tiny else None
        texts = [(item.query.text, [p.text[:longest] for p in item.candidates[: self.depth]]) for item in found]
        if not (long := [(query, passages) for query, passages in texts if len(passages) == self.depth]):
            raise ValueError(f"{self.requests} has no list of {self.depth} passages; give another file, or none")
        return long

    @cached_property
    def models(self) -> RandomModels:
        return RandomModels(self.folder, self.device, self.lists)

    @cached_property
    def flop_per_s(self) -> float:
        """The rate of a large matrix product, in bfloat16 on a GPU."""
        n, dtype = (256, torch.float32) if self.is_tiny else (8192, torch.bfloat16)
        left, right = (torch.randn(n, n, device=self.device, dtype=dtype) for _ in "ab")
        return 2 * n**3 / self.ms(lambda: left @ right, repeats=20) * 1000

    @cached_property
    def bytes_per_s(self) -> float:
        """The rate of a copy within the device's memory, reads and writes together."""
        source = torch.zeros(2**20 if self.is_tiny else 2**31, dtype=torch.uint8, device=self.device)
        return 2 * source.nbytes / self.ms(source.clone) * 1000

    def ms(self, work: Callable[[], object], repeats: int = 3) -> float:
        """The median time until the device has finished, in milliseconds, after a warm-up; on a CPU of one run."""
        times = []
        for _ in range(1 if self.is_tiny else 1 + repeats):
            start_s = time.perf_counter()
            work()
            if not self.is_tiny:
                torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - start_s))
        return median(times[1:] or times)

    def floor_ms(self, size: LlamaSize, tokens: float, flop: int = 2) -> float:
        """The time of the matrix products of `tokens`: 2 FLOP for each weight of the layers, in training 6."""
        return 1000 * tokens / self.most_tokens_per_s(size, flop)

    def most_tokens_per_s(self, size: LlamaSize, flop: int = 2) -> float:
        return self.flop_per_s / (flop * layer_weights(size))

    def read_ms(self, size: LlamaSize) -> float:
        """The time to read the weights of the layers once in bfloat16, which a written token takes at least."""
        return 1000 * 2 * layer_weights(size) / self.bytes_per_s

    def free_memory(self) -> None:
        """Frees the GPU's memory of models that are not used any more."""
        if not self.is_tiny:
            torch._dynamo.reset()
            gc.collect()  # a compiled layer refers to itself
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Served:
    """A service of one model at an address, called with the lists of a proof, one after the other."""

    proof: Proof
    address: str

    @cached_property
    def _lists(self) -> Iterator[Texts]:
        return cycle(self.proof.lists)

    def send(self, callers: int, calls: int, depth: int) -> Calls:
        lists = [(query, texts[:depth]) for query, texts in islice(self._lists, calls)]
        return self.proof.callers.submit(call, self.address, lists, callers).result()

    def measure(self, callers: int, calls: int, depth: int = 100) -> Calls:
        """Sends calls, after one of each caller that warms up; on a CPU at most eight."""
        if self.proof.is_tiny:
            return self.send(callers, min(calls, 8), depth)
        self.send(callers, callers, depth)
        return self.send(callers, calls, depth)

    def add_one_caller(
        self, name: str, calls: int, size: LlamaSize | None, depth: int = 100, more_ms: float = 0.0
    ) -> Calls:
        """Adds a row: the median latency of a caller.

        Args:
            size: of the model, for the floor of a pass; None: there is none.
            depth: passages of a list.
            more_ms: is added to that floor.
        """
        load = self.measure(1, calls, depth)
        shown = f"{min(depth, self.proof.depth)} passages ({load.tokens:,.0f} tokens)"
        floor_ms = self.proof.floor_ms(size, load.tokens) + more_ms if size else 0.0
        self.proof.table.figure(f"{name}, {shown}, one caller, p50", load.p50_ms, "ms", floor_ms, load.note)
        return load


@contextmanager
def service(proof: Proof, ranker: str, device: str | None = None, **model: object) -> Iterator[Served]:
    """A service over gRPC in this process, until the block ends."""
    settings = {
        "listen": "127.0.0.1:0",
        "device": device or proof.device.type,
        "encoder": {"name": str(proof.models.encoder), "pooling": "mean"},
        "engine": {"text_vector_cache_bytes": 0},
        "models": [{"name": "measured", "ranker": ranker, **model}],
        "drain_s": 0,
    }
    try:
        with closing(EventLoopThread("service")) as loop:
            with proof.models.weights_on_device():
                server = running_server(load_reranker(ServiceConfig.model_validate(settings)))
            address = loop.wait(server.__aenter__()).address
            try:
                yield Served(proof, address)
            finally:
                loop.wait(server.__aexit__(None, None, None))
    finally:
        proof.free_memory()


def prove_first(proof: Proof) -> None:
    """FIRST with 7B: its start, one window, a list, and eight and 32 callers."""
    table, size, start_s = proof.table, proof.models.size("7B"), time.monotonic()
    with service(proof, "first", template="first", path=str(proof.models.causal_lm("7B"))) as served:
        table.figure("FIRST 7B is ready; no weights are read from files", 1000 * (time.monotonic() - start_s), "ms")
        if not proof.is_tiny:
            free, total = torch.cuda.mem_get_info()
            table.add("GPU memory with FIRST 7B", f"{(total - free) / 2**30:.1f} GiB of {total / 2**30:.1f}")
        served.add_one_caller("FIRST 7B, one window", 2 * _CALLS, size, PASSAGES)
        served.add_one_caller("FIRST 7B", _CALLS, size)
        for callers, count in ((8, 16), (32, 32)):
            load = served.measure(callers, count)
            what, note = f"FIRST 7B, {proof.depth} passages, {callers} callers", f", p50 {load.p50_ms:,.0f} ms"
            table.figure(what, load.tokens_per_s, "tokens/s", proof.most_tokens_per_s(size), note)


def prove_pe_rank(proof: Proof) -> None:
    """PE-Rank with 7B over texts: in one step with one and sixteen callers, and dynamic decoding."""
    size = proof.models.size("7B")
    model: dict[str, Any] = {"template": "pe_rank_text", "path": str(proof.models.causal_lm("7B"))}
    with service(proof, "pe-rank", decoding="one_step", **model) as served:
        tokens = served.add_one_caller("PE-Rank 7B, one step", 2 * _CALLS, size).tokens
        load = served.measure(16, 48)
        what, note = f"PE-Rank 7B, one step, {proof.depth} passages, 16 callers", f", p50 {load.p50_ms:,.0f} ms"
        proof.table.figure(what, load.queries_per_s, "queries/s", 1000 / proof.floor_ms(size, tokens), note)
    with service(proof, "pe-rank", decoding="dynamic", **model) as served:
        steps = proof.depth - 1  # the last passage is not chosen
        name, more_ms = f"PE-Rank 7B, dynamic ({steps} steps)", steps * proof.read_ms(size)
        served.add_one_caller(name, _SLOW, size, more_ms=more_ms)


def prove_default(proof: Proof) -> None:
    """The default's formula with an encoder of its shape, without the sparse encoder, whose package may be missing."""
    with service(proof, "fusion", sparse_weight=0.0) as served:
        served.add_one_caller("default", 2 * _CALLS, None)
        load = served.measure(16, 48)
        what, note = f"default, {proof.depth} passages, 16 callers", f", p50 {load.p50_ms:,.0f} ms"
        proof.table.figure(what, load.queries_per_s, "queries/s", note=note)


def prove_training(proof: Proof) -> None:
    """`train-first` for 7B, and a step of 0.6B."""
    with proof.table.part("train-first 7B"):
        _train_first(proof)
    proof.free_memory()
    with proof.table.part("a training step of 0.6B"):
        _time_step(proof)


def _train_first(proof: Proof) -> None:
    """Ten steps of four windows with LoRA.

    The command prints tokens per second from its first step to the last one. All steps have as many tokens, so step n
    ended n / speed after the first one began.
    """
    draw, path, log = random.Random(0), proof.folder / "lists.jsonl", proof.table.path.parent / "train.log"
    lists = []
    for query, texts in proof.lists[:_WINDOWS]:
        passages = tuple(Passage(f"d{index}", text) for index, text in enumerate(texts[:PASSAGES]))
        lists.append(TrainingList(Query(query, query), passages, tuple(draw.random() for _ in passages)))
    write_lists(path, lists)
    flags = f"--base {proof.models.causal_lm('7B')} --lists {path} --output-dir {proof.folder / 'run'} --lora-rank 16"
    flags += f" --gradient-checkpointing --per-device-train-batch-size {_WINDOWS} --max-steps {_STEPS}"
    flags += f" --logging-steps 1 --save-strategy no{'' if proof.is_tiny else ' --bf16'}"
    with log.open("w", encoding="utf-8", buffering=1) as file, redirect_stdout(file), proof.models.weights_on_device():
        train_first.args[0](flags.split(), standalone_mode=False)
    printed = re.findall(r"step +(\d+)/.* ([\d,]+) tokens/s", log.read_text(encoding="utf-8"))
    speeds = {int(step): float(speed.replace(",", "")) for step, speed in printed}
    steady = (_STEPS - _WARM_UP) / (_STEPS / speeds[_STEPS] - _WARM_UP / speeds[_WARM_UP])
    what = f"train-first 7B, LoRA 16, checkpointing, {_WINDOWS} windows a step, steps {_WARM_UP + 1} to {_STEPS}"
    note = f", {speeds[_STEPS]:,.0f} with the steps that compile layers"
    most = proof.most_tokens_per_s(proof.models.size("7B"), _TRAINING_FLOP)
    proof.table.figure(what, steady, "tokens/s", most, note)


def _time_step(proof: Proof) -> None:
    """A step of two windows of 2,000 tokens that trains all weights in mixed precision; compiled on a GPU."""
    size, tokens = proof.models.size("0.6B"), 40 if proof.is_tiny else 2000
    model = llama(size, proof.device).train().requires_grad_(True)
    optimizer, layers = torch.optim.AdamW(model.parameters(), fused=True), CompiledLayers(model)
    objective = FirstObjective("joint", rank_loss_named("weighted-ranknet"), 10.0, tuple(range(PASSAGES)))
    ids, bracket = torch.randint(size.vocabulary, (2, tokens), device=proof.device), tokens - 10
    relevance = torch.rand(2, PASSAGES, device=proof.device)
    batch = {
        "input_ids": ids,
        "labels": ids.masked_fill(torch.arange(tokens, device=proof.device) < bracket, -100),  # the last are the answer
        "bracket_index": torch.full((2,), bracket, device=proof.device),
        "relevance": relevance,
        "mask": torch.ones_like(relevance, dtype=torch.bool),
    }

    def forward_and_backward() -> None:
        with torch.autocast(proof.device.type, torch.bfloat16):
            objective.terms(model, batch).sum().backward()

    def step() -> None:
        if proof.is_tiny:
            forward_and_backward()
        else:
            layers.run(forward_and_backward, model.zero_grad)
        optimizer.step()
        optimizer.zero_grad()

    what = f"a training step of 0.6B, all weights, 2 x {tokens:,} tokens"
    proof.table.figure(what, proof.ms(step), "ms", proof.floor_ms(size, 2 * tokens, _TRAINING_FLOP))


def prove_agreement(proof: Proof) -> None:
    """Scores of whole windows in each precision, against plain ones in float32: the CPU's, or for given weights the
    device's. Each service has compared its model with transformers' on short windows before it answers (`self_test`).
    """
    path = str(proof.models.causal_lm("compared"))
    vectors = {"decoding": "one_step", "lexical_weight": 0.0, "first_stage_weight": 0.0, "template": "pe_rank_text"}
    rankers: dict[str, dict[str, Any]] = {
        "FIRST": {"ranker": "first", "path": path, "template": "first"},
        "PE-Rank": {"ranker": "pe-rank", "path": path, **vectors},
        "E2Rank": {"ranker": "e2rank", "path": path},
    }
    for name, model in rankers.items():
        with proof.table.part(name):
            _compare(proof, name, model, "cpu", 2)
    if proof.weights:
        with proof.table.part(proof.weights.name):
            model = {"ranker": "first", "path": str(proof.weights)}
            _compare(proof, proof.weights.name, model, proof.device.type, len(proof.lists))


def _compare(proof: Proof, name: str, model: dict[str, Any], plain: str, lists: int) -> None:
    """Adds a row for each precision; `plain` is the device that gives the expected scores, in float32."""

    def scores_in(precision: str, device: str) -> Any:
        """(lists, PASSAGES) scores of the passages as they were sent, with a mean of 0 in each list."""
        with service(proof, device=device, precision=precision, **model) as served:
            replies = served.send(1, lists, PASSAGES).replies
        rows = np.zeros((lists, PASSAGES))
        for row, reply in zip(rows, replies, strict=True):
            for result in reply.results:
                row[result.original_position] = result.score
        return rows - rows.mean(axis=1, keepdims=True)

    expected = scores_in("float32", plain)
    for precision in ("float32", "bfloat16", *["float8"] * (has_float8(proof.device) and name != "E2Rank")):
        bound = _FLOAT8_BOUND if precision == "float8" else tolerance(proof.device.type, precision).deviations
        found = scores_in(precision, proof.device.type)
        worst = float(np.sqrt(((found - expected) ** 2).mean(axis=1)).max() / expected.std())
        tau = fmean(float(kendalltau(*pair).statistic) for pair in zip(found, expected, strict=True))
        what, measured = f"{name}, {precision}", f"{worst:.2g} deviations from float32; tau {tau:.3f}"
        if worst <= bound:
            proof.table.add(what, measured, f"{bound} deviations", f"{worst / bound:.2f}")
        else:
            proof.table.fail(what, f"{measured}; {bound} deviations are allowed")


def prove_other_models(proof: Proof) -> None:
    """FIRST with 7B in float8, where the device has it, and with the weights that are given or a model of 135M."""
    models = proof.models
    if has_float8(proof.device):
        with service(proof, "first", path=str(models.causal_lm("7B")), precision="float8") as served:
            served.add_one_caller("FIRST 7B in float8", _CALLS, models.size("7B"))
    with service(proof, "first", path=str(proof.weights or models.causal_lm("135M"))) as served:
        if proof.weights:
            served.add_one_caller(proof.weights.name, _CALLS, None)
        else:
            served.add_one_caller("FIRST 135M", _CALLS, models.size("135M"))


def prove_generation(proof: Proof) -> None:
    """A window whose order 7B writes token by token."""
    with service(proof, "generation", template="first", path=str(proof.models.causal_lm("7B"))) as served:
        load = served.measure(1, _SLOW, PASSAGES)
    token_ms = load.median_of(lambda execution: execution.decode_ms / max(1, execution.decode_tokens - 1))
    what = "generation 7B, a written token (floor: to read the weights)"
    proof.table.figure(what, token_ms, "ms", proof.read_ms(proof.models.size("7B")))


#: In the order of their runs: name → what measures it, and when it is ended, in seconds since the start.
SECTIONS: dict[str, tuple[Callable[[Proof], None], float]] = {
    "first": (prove_first, 90),
    "pe-rank": (prove_pe_rank, 125),
    "default": (prove_default, 135),
    "training": (prove_training, 190),
    "agreement": (prove_agreement, 212),
    "other-models": (prove_other_models, 228),
    "generation": (prove_generation, 236),
}


if __name__ == "__main__":
    run(app)
