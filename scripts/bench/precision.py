"""bfloat16 and int8 against float32 on a CPU: FIRST, query likelihood, PE-Rank over texts, and the encoder.

The width from which `auto` is bfloat16 comes from the figures of random Llamas here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedModel

from rerank.checkpoints import bundled
from rerank.config import Precision
from rerank.models.packing_check import make_last_token_reader
from rerank.models.precision import has_bfloat16, has_vnni
from rerank.rankers.base import Ranker
from rerank.rankers.first import FirstRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from rerank.types import Window
from scripts.bench.models import LlamaSize, llama
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import Workload

_WIDTHS, _TOKENS = (128, 256, 384, 512, 576, 1024), 1450
_TEXTS = 320


def measure_precision(workload: Workload) -> Values:
    """The seconds in float32 divided by those in another precision. Passages come as texts, and nothing is kept."""
    precisions: list[Precision] = ["float32"]
    precisions += ["bfloat16"] if has_bfloat16() else []
    precisions += ["int8"] if has_vnni() else []
    return {
        **_rankers(workload, precisions),
        **_encoder(workload, precisions),
        **_widths(workload, precisions),
    }


def _rankers(workload: Workload, precisions: Sequence[Precision]) -> Values:
    first = workload.checkpoint if workload.quick else bundled.FIRST
    base = workload.checkpoint if workload.quick else Path(bundled.SMOLLM2)
    loaders: dict[str, Callable[[Precision], Ranker]] = {
        "FIRST": lambda precision: FirstRanker(first, "first_smollm2", device="cpu", precision=precision),
        "query likelihood": lambda precision: QueryLikelihoodRanker(base, device="cpu", precision=precision),
        "PE-Rank over texts": lambda precision: PERankRanker(
            bundled.PE_RANK, workload.encoder, "cpu", precision=precision
        ),
    }
    values: Values = {}
    for name, load in loaders.items():
        rankers = {precision: load(precision) for precision in precisions}
        for n in (1, 8) if name == "FIRST" else (1,):
            windows = [_without_vectors(window) for window in workload.windows[:n]]
            runs = {precision: partial(_rank, ranker, windows) for precision, ranker in rankers.items()}
            of_name = f"{name}, {n} window{'s' * (n > 1)}"
            values |= _ratios(of_name, runs, workload.repeats if n == 1 else workload.few_repeats)
    return values


def _without_vectors(window: Window) -> Window:
    return Window(window.query, tuple(replace(passage, vector=None) for passage in window.passages))


def _rank(ranker: Ranker, windows: Sequence[Window]) -> object:
    """All that a request costs a model: preparation, prompts, and one batch."""
    ready = [ranker.prepare(window.query, window.passages) for window in windows]
    return ranker.rank([ranker.encode(Window(each.query, each.passages)) for each in ready])


def _encoder(workload: Workload, precisions: Sequence[Precision]) -> Values:
    """Against sentence-transformers as it is, in float32."""
    texts = [passage.text for window in workload.windows for passage in window.passages]
    texts = texts[: 16 if workload.quick else _TEXTS]
    plain = SentenceTransformer(str(workload.encoder.folder), device="cpu", trust_remote_code=False)
    runs: dict[str, Callable[[], object]] = {name: partial(workload.encoder.encode, texts, name) for name in precisions}
    seconds = time_in_turns({"plain": partial(plain.encode, texts, batch_size=16), **runs}, workload.few_repeats)
    values = {
        f"encoder against sentence-transformers, {name}": ratios(seconds["plain"], seconds[name]) for name in runs
    }
    return values | {f"passages/s, {name}": [len(texts) / each for each in seconds[name]] for name in runs}


def _widths(workload: Workload, precisions: Sequence[Precision]) -> Values:
    """One row through four layers of random Llamas, of heads of 64 numbers, which share keys by threes if they can."""
    row, values = [torch.arange(20 if workload.quick else _TOKENS)], Values()
    for width in _WIDTHS[:1] if workload.quick else _WIDTHS:
        heads = width // 64
        size = LlamaSize(width, width * 8 // 3, 4, heads, heads // 3 if heads % 3 == 0 else heads, _TOKENS)
        readers = {
            precision: make_last_token_reader(cast(PreTrainedModel, llama(size).base_model), precision)
            for precision in precisions
        }
        runs = {precision: partial(reader.read, row) for precision, reader in readers.items()}
        values |= _ratios(f"Llama of width {width}", runs, workload.repeats)
    return values


def _ratios(name: str, runs: Mapping[Precision, Callable[[], object]], repeats: int) -> Values:
    seconds = time_in_turns({str(precision): run for precision, run in runs.items()}, repeats)
    return {f"{name}, {other}": ratios(seconds["float32"], seconds[other]) for other in runs if other != "float32"}
