"""How fast the rankers, the engine and the service are, next to the usual ways: writes bench.json and a plot.

    python scripts/bench_engine.py [--requests requests.jsonl] [--only first,pe] [--quick]

Every ratio is of runs in one process that take turns, one torch thread, in CPU seconds of the process, so that other
work on the machine disturbs little; with CUDA in seconds. Weights are random: time does not depend on them. Ratios say
how often ours fits into the other's time; those of at_once, service and p99 are the other way round, ours over other.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeAlias

import matplotlib
import torch
import typer
from bench_models import MISTRAL_7B, QWEN3_0_6B, TINY, Size, llama, windows, write_checkpoint
from simulate_scheduler import LONG, Device, EngineScheduler, Fifo, percentile, simulate, useful_share, workload
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.commands.run import run
from rerank.config import EngineConfig, FirstModel, PERankModel, ServiceConfig
from rerank.engine.engine import Engine
from rerank.engine.job import Job
from rerank.engine.strategies import Sliding
from rerank.models.encoder import Encoder
from rerank.models.last_token import IdentifierHead
from rerank.models.packing_probe import make_last_token_reader
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.first import FirstRanker
from rerank.rankers.identity import IdentityRanker
from rerank.rankers.pe_checkpoint import load_pe_checkpoint
from rerank.rankers.pe_rank import PERankRanker
from rerank.registry import ModelRegistry
from rerank.reranker import AsyncReranker
from rerank.service.client import AsyncRerankClient
from rerank.service.server import running_server
from rerank.types import Candidate, Passage, Query, Window

Results: TypeAlias = dict[str, list[float]]
Clock: TypeAlias = Callable[[], float]

PASSAGES = 20
#: "[a] > [b] > …", 20 letters: three tokens an identifier and one between two.
ANSWER_TOKENS = 79
TIMES = "times"
UNITS = {"growth": "ms", "memory": "MB", "useful": "share"}


@dataclass(frozen=True)
class Bench:
    """The models and windows that all measurements share."""

    folder: Path
    requests: Path | None
    quick: bool
    repeats: int

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(device="cpu")

    @cached_property
    def checkpoint(self) -> Path:
        return write_checkpoint(self.folder / "model", self.encoder, TINY if self.quick else Size())

    @cached_property
    def first(self) -> FirstRanker:
        return FirstRanker(self.checkpoint, "first", device="cpu")

    def pe(self, dynamic: bool = False) -> PERankRanker:
        return PERankRanker(self.checkpoint, self.encoder, "cpu", "dynamic" if dynamic else "one_step")

    @cached_property
    def windows(self) -> list[Window]:
        made = windows(None if self.quick else self.requests, 8, PASSAGES, self.encoder, 4 if self.quick else None)
        return [self.prepared(window) for window in made]

    def prepared(self, window: Window) -> Window:
        ready = self.first.prepare(window.query, window.passages)
        return replace(window, query=ready.query, passages=ready.passages)

    @cached_property
    def prompts(self) -> list[list[int]]:
        """What FIRST reads of each window, without the bracket."""
        tokenizer = AutoTokenizer.from_pretrained(self.checkpoint)
        renderer = ListwiseRenderer(load_template("first"), tokenizer, 8192, 1)
        names = "abcdefghijklmnopqrstuvwxyz"
        return [renderer.prompt(window, list(names)).token_ids for window in self.windows]


def taking_turns(ways: Mapping[str, Callable[[], object]], repeats: int, clock: Clock = time.process_time) -> Results:
    """Seconds of each way in every round; the first round warms up and is not counted."""
    seconds: Results = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            begun = clock()
            way()
            if turn:
                seconds[name].append(clock() - begun)
    return seconds


def times(other: Sequence[float], ours: Sequence[float]) -> list[float]:
    """How often ours fits into the other, round by round."""
    return [a / b for a, b in zip(other, ours, strict=True)]


@torch.inference_mode()
def first(bench: Bench) -> Results:
    """One window: lean FIRST, and what one would write first."""
    model: Any = AutoModelForCausalLM.from_pretrained(bench.checkpoint)
    window, prompt = bench.windows[0], torch.tensor([bench.prompts[0]])
    whole = torch.ones_like(prompt)

    def generate(tokens: int) -> object:
        return model.generate(
            prompt,
            attention_mask=whole,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )

    seconds = taking_turns(
        {
            "ours": lambda: rank_windows(bench.first, [window]),
            "generating the permutation": lambda: generate(ANSWER_TOKENS),
            "generate one token": lambda: generate(1),
            "all-position logits": lambda: model(input_ids=prompt, attention_mask=whole),
        },
        bench.repeats,
    )
    return {f"first_vs_{name}": times(own, seconds["ours"]) for name, own in seconds.items() if name != "ours"}


@torch.inference_mode()
def packed(bench: Bench) -> Results:
    """Eight windows: packed, and in a padded batch with a mask that reads the last logits as well."""
    model = AutoModelForCausalLM.from_pretrained(bench.checkpoint)
    longest = max(map(len, bench.prompts))
    rows = torch.tensor([[0] * (longest - len(ids)) + ids for ids in bench.prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in bench.prompts])
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)

    def padded() -> object:
        return model(input_ids=rows, attention_mask=mask, position_ids=places, use_cache=False, logits_to_keep=1)

    ways = {"ours": lambda: rank_windows(bench.first, bench.windows), "padded": padded}
    seconds = taking_turns(ways, max(2, bench.repeats // 2))
    return {"packed_vs_padded, 8 windows": times(seconds["padded"], seconds["ours"])}


class Generation:
    """PE-Rank as published: passages are further words, and `generate` may say those that are left."""

    def __init__(self, bench: Bench) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(bench.checkpoint)
        self._words = self._model.config.vocab_size
        self._model.resize_token_embeddings(self._words + PASSAGES, mean_resizing=False)
        loaded = load_pe_checkpoint(bench.checkpoint, bench.encoder, torch.device("cpu"), None)
        self._projector = loaded.projector
        self._prompts = VectorPrompts(loaded.template, loaded.tokenizer, loaded.own_vocabulary, 64)

    @torch.inference_mode()
    def order(self, window: Window) -> tuple[int, ...]:
        vectors = torch.stack([torch.from_numpy(p.vector) for p in window.passages if p.vector is not None])
        projected, words = self._projector(vectors), self._words
        for table in (self._model.get_input_embeddings(), self._model.get_output_embeddings()):
            table.weight[words:] = projected
        own = iter(range(words, words + PASSAGES))
        slots = self._prompts.token_ids(window.query, window.passages)
        prompt = torch.tensor([[next(own) if token < 0 else token for token in slots]])
        left = set(range(words, words + PASSAGES))
        said = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=PASSAGES,
            do_sample=False,
            pad_token_id=0,
            prefix_allowed_tokens_fn=lambda _, ids: sorted(left - set(ids[len(slots) :].tolist())),
        )
        return tuple(token - words for token in said[0, len(slots) :].tolist())


def pe(bench: Bench) -> Results:
    """One window and eight: both decodings, the published loop, and FIRST with the passages' text."""
    one_step, dynamic, generation = bench.pe(), bench.pe(dynamic=True), Generation(bench)
    found: Results = {}
    for n in (1, 8):
        asked = bench.windows[:n]
        if [one.permutation for one in rank_windows(dynamic, asked)] != [generation.order(window) for window in asked]:
            raise AssertionError("dynamic decoding and the generate loop disagree; this is a bug")
        seconds = taking_turns(
            {
                "one_step": lambda asked=asked: rank_windows(one_step, asked),  # type: ignore[misc]
                "dynamic": lambda asked=asked: rank_windows(dynamic, asked),  # type: ignore[misc]
                "generate": lambda asked=asked: [generation.order(window) for window in asked],  # type: ignore[misc]
                "text": lambda asked=asked: rank_windows(bench.first, asked),  # type: ignore[misc]
            },
            bench.repeats if n == 1 else max(2, bench.repeats // 2),
        )
        found[f"pe_dynamic_vs_generate, {n}"] = times(seconds["generate"], seconds["dynamic"])
        found[f"pe_dynamic_vs_text twin, {n}"] = times(seconds["text"], seconds["dynamic"])
        found[f"pe_one_step_vs_text twin, {n}"] = times(seconds["text"], seconds["one_step"])
    return found


def at_once(bench: Bench) -> Results:
    """The same requests together and one after the other, through the engine: FIRST's long windows, PE-Rank's short."""
    found: Results = {}
    rankers: dict[str, Ranker] = {"first": bench.first, "pe": bench.pe()}
    for model, ranker in rankers.items():
        sizes = (8,) if model == "first" else (2, 4, 8)
        for n in sizes:
            jobs = [_job(model, window) for window in bench.windows[:n]]
            seconds = asyncio.run(_at_once(model, ranker, jobs, 2 if model == "first" else bench.repeats))
            found[f"at_once_vs_in a row, {n} {model}"] = times(seconds["together"], seconds["in a row"])
    return found


async def _at_once(model: str, ranker: Ranker, jobs: Sequence[Job], repeats: int) -> Results:
    async with Engine({model: ranker}, EngineConfig()) as engine:

        async def together() -> None:
            await asyncio.gather(*(engine.run(job) for job in jobs))

        async def in_a_row() -> None:
            for job in jobs:
                await engine.run(job)

        return await _taking_turns({"together": together, "in a row": in_a_row}, repeats)


async def _taking_turns(ways: Mapping[str, Callable[[], Awaitable[object]]], repeats: int) -> Results:
    seconds: Results = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            begun = time.process_time()
            await way()
            if turn:
                seconds[name].append(time.process_time() - begun)
    return seconds


def _job(model: str, window: Window) -> Job:
    return Job(model, window.query, tuple(map(Candidate, window.passages)), Sliding(PASSAGES, PASSAGES // 2), top_n=0)


def scheduler(bench: Bench) -> Results:
    """In virtual time, by scripts/simulate_scheduler.py: short requests beside long ones, and overload."""
    device, found = Device(), dict[str, list[float]]()
    requests, seeds = (200, 1) if bench.quick else (2000, 3)
    shares, useful = list[float](), list[float]()
    for seed in range(seeds):
        p99 = []
        for make in (Fifo, EngineScheduler):
            work = workload(0.85, requests, device, seed)
            simulate(work, make(device), device)
            p99.append(percentile([one.latency_s for one in work if one.candidates < LONG], 99))
        shares.append(p99[1] / p99[0])
        work = workload(2.0, requests, device, seed, deadline_s=2.0)
        simulate(work, EngineScheduler(device), device)
        useful.append(useful_share(work))
    found["short p99_vs_fifo, load 0.85"] = shares
    found["useful work, load 2, deadlines of 2 s"] = useful
    return found


def service(bench: Bench) -> Results:
    """Eight callers that never pause: gRPC on localhost, client and server in this process, against the bare engine."""
    return asyncio.run(_service(bench))


async def _service(bench: Bench) -> Results:
    models = (
        FirstModel(name="first", ranker="first", path=bench.checkpoint),
        PERankModel(name="pe", ranker="pe-rank", path=bench.checkpoint),
    )
    rankers: dict[str, Ranker] = {"first": bench.first, "pe": bench.pe()}
    config = ServiceConfig(listen="127.0.0.1:0", models=models)
    found: Results = {}
    short = [_without_vectors(window) for window in windows(None, 8, PASSAGES, bench.encoder, 6)]
    async with (
        running_server(AsyncReranker(config, bench.encoder, None, ModelRegistry(config.models, rankers))) as server,
        AsyncRerankClient(server.address) as client,
        Engine(rankers, EngineConfig()) as engine,
    ):
        for model in rankers:
            # Passages travel as texts, so PE-Rank encodes them on both sides: short ones, or nothing else would show.
            asked = short if model == "pe" else [_without_vectors(window) for window in bench.windows]
            texts = [[(passage.doc_id, passage.text) for passage in window.passages] for window in asked]

            async def through_grpc(
                model: str = model, asked: list[Window] = asked, texts: list[list[tuple[str, str]]] = texts
            ) -> None:
                calling = zip(asked, texts, strict=True)
                await asyncio.gather(*(client.rerank(w.query.text, own, model=model) for w, own in calling))

            async def bare(model: str = model, asked: list[Window] = asked) -> None:
                await asyncio.gather(*(engine.run(_job(model, window)) for window in asked))

            repeats = 1 if bench.quick else 2 if model == "first" else 6
            seconds = await _taking_turns({"service": through_grpc, "engine": bare}, repeats)
            found[f"service_vs_engine, {model}"] = times(seconds["service"], seconds["engine"])
    return found


def _without_vectors(window: Window) -> Window:
    return Window(window.query, tuple(Passage(passage.doc_id, passage.text) for passage in window.passages))


def growth(bench: Bench) -> Results:
    """Milliseconds of CPU by the number of candidates, the length of passages, and how many requests wait."""
    return asyncio.run(_growth_of_candidates(bench)) | _growth_of_words(bench) | asyncio.run(_growth_of_queue(bench))


async def _growth_of_candidates(bench: Bench) -> Results:
    found: Results = {}
    async with Engine({"pe": bench.pe()}, EngineConfig()) as engine:
        for n in (20, 100) if bench.quick else (20, 100, 1000):
            (window,) = windows(None, 1, n, bench.encoder, 4)

            async def rerank(window: Window = window) -> None:
                await engine.run(_job("pe", window))

            seconds = (await _taking_turns({"": rerank}, 1 if n > 100 else 3))[""]
            found[f"growth, {n} candidates, pe"] = [1000 * own for own in seconds]
    return found


def _growth_of_words(bench: Bench) -> Results:
    found: Results = {}
    for words in (4, 8) if bench.quick else (20, 40, 80, 160):
        (window,) = map(bench.prepared, windows(None, 1, PASSAGES, bench.encoder, words))
        seconds = taking_turns({"": lambda window=window: rank_windows(bench.first, [window])}, 2)[""]  # type: ignore[misc]
        found[f"growth, {words} words a passage, first"] = [1000 * own for own in seconds]
    return found


async def _growth_of_queue(bench: Bench) -> Results:
    """What a request costs when no model runs: the engine alone."""
    found: Results = {}
    (window,) = windows(None, 1, PASSAGES, bench.encoder, 4)
    async with Engine({"identity": IdentityRanker()}, EngineConfig(max_queue_tokens=10**9)) as engine:
        for n in (1, 10, 100) if bench.quick else (1, 10, 100, 1000):

            async def together(n: int = n) -> None:
                await asyncio.gather(*(engine.run(_job("identity", window)) for _ in range(n)))

            seconds = (await _taking_turns({"": together}, 3))[""]
            found[f"growth, {n} requests at once, each"] = [1000 * own / n for own in seconds]
    return found


def memory(bench: Bench) -> Results:
    """How much the process grows over 2,000 requests with texts of their own, after 200."""
    small = replace(bench, folder=bench.folder / "small", quick=True)
    return {"memory after 2,000 requests": [asyncio.run(_memory(small, 20 if bench.quick else 2000))]}


async def _memory(bench: Bench, requests: int) -> float:
    """MB. A tiny model: what is kept by mistake is kept whatever the model."""
    rankers: dict[str, Ranker] = {"first": bench.first, "pe": bench.pe(dynamic=True)}
    asked = windows(None, 50, PASSAGES, bench.encoder, 8)
    resident = 0.0
    async with Engine(rankers, EngineConfig()) as engine:
        for number in range(-(requests // 10), requests):
            if number == 0:
                resident = _resident_mb()
            window = asked[number % len(asked)]
            fresh = replace(window, query=Query(f"{window.query.text} {number}"))
            await engine.run(_job("first" if number % 2 else "pe", fresh))
        return _resident_mb() - resident


def _resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cuda(bench: Bench) -> Results:
    """Large random models in bfloat16: lean against generating. Not run where this was written."""
    if not torch.cuda.is_available():
        return {}
    sizes = {"0.6B": QWEN3_0_6B, "7B": MISTRAL_7B}
    return {f"cuda_vs_generating the permutation, {name}": _on_cuda(bench, size) for name, size in sizes.items()}


@torch.inference_mode()
def _on_cuda(bench: Bench, size: Size) -> list[float]:
    model: Any = llama(size)
    model.to("cuda", torch.bfloat16)
    prompt = torch.tensor([bench.prompts[0]], device="cuda")
    generated = _cuda_seconds(lambda: model.generate(prompt, max_new_tokens=ANSWER_TOKENS, do_sample=False))
    model.set_output_embeddings(IdentifierHead(model.get_output_embeddings(), range(PASSAGES)).to("cuda"))
    reader = make_last_token_reader(model)
    return times(generated, _cuda_seconds(lambda: reader.read([prompt[0]])))


def _cuda_seconds(way: Callable[[], object]) -> list[float]:
    def waited() -> None:
        way()
        torch.cuda.synchronize()

    return taking_turns({"": waited}, 5, time.perf_counter)[""]


GROUPS: dict[str, Callable[[Bench], Results]] = {
    own.__name__: own for own in (first, packed, pe, at_once, scheduler, service, growth, memory, cuda)
}


def summary(name: str, values: Sequence[float]) -> dict[str, Any]:
    unit = next((unit for start, unit in UNITS.items() if name.startswith(start)), TIMES)
    return {"median": median(values), "min": min(values), "max": max(values), "unit": unit}


def plot(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """The ratios with their ranges."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {name: own for name, own in results.items() if own["unit"] == TIMES}
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(ratios) + 1))
    middle = [own["median"] for own in ratios.values()]
    errors = [
        [own["median"] - own["min"] for own in ratios.values()],
        [own["max"] - own["median"] for own in ratios.values()],
    ]
    axes.barh(list(ratios), middle, xerr=errors, color="0.7", ecolor="0.2")
    axes.invert_yaxis()
    axes.axvline(1, color="0.2", linewidth=0.8)
    axes.set(xscale="log", xlabel="other / ours, CPU time (at_once, service, p99: ours / other)")
    figure.savefig(path, bbox_inches="tight", dpi=80)
    pyplot.close(figure)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    requests: Annotated[Path | None, typer.Option(help="RankLLM request JSONL for windows of real passages.")] = None,
    only: Annotated[str, typer.Option(help=f"Some of {','.join(GROUPS)}.")] = ",".join(GROUPS),
    out: Annotated[Path, typer.Option(help="What stands in it stays, unless measured again.")] = Path("bench.json"),
    plot_to: Annotated[Path | None, typer.Option(help="A PNG of the ratios.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny model and windows: shows that it runs.")] = False,
) -> None:
    """Measure, print, and write bench.json: {name: {median, min, max, unit}}."""
    torch.set_num_threads(1)
    results = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(Path(folder), requests, quick, 1 if quick else repeats)
        for group in only.split(","):
            for name, values in GROUPS[group](bench).items():
                own = results[name] = summary(name, values)
                shown = " ".join(f"{own[key]:9.3f}" for key in ("median", "min", "max"))
                print(f"{name:45} {shown} {own['unit']}", flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if plot_to is not None:
        plot(results, plot_to)


if __name__ == "__main__":
    run(app)
