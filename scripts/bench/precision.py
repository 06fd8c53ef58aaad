"""float32, bfloat16 and int8 on a CPU: FIRST, PE-Rank over texts, and the encoder."""

from __future__ import annotations

from functools import partial

from sentence_transformers import SentenceTransformer

from rerank import bundled
from rerank.config import Precision
from rerank.models.precision import has_vnni
from rerank.rankers.first import FirstRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import Window
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import Workload

_PRECISIONS: tuple[Precision, ...] = ("bfloat16", "int8")
_TEXTS = 160


def measure_precision(workload: Workload) -> Values:
    """float32's time divided by that of each other precision. One window; the weights are the bundled ones' sizes."""
    precisions: list[Precision] = [name for name in _PRECISIONS if name != "int8" or has_vnni()]
    window = workload.windows[0]
    texts = [passage.text for each in workload.windows for passage in each.passages][: 16 if workload.quick else _TEXTS]
    figures: Values = {}

    def first(precision: Precision) -> FirstRanker:
        checkpoint = workload.checkpoint if workload.quick else bundled.FIRST
        return FirstRanker(checkpoint, "first", device="cpu", precision=precision)

    rankers = {name: first(name) for name in ("float32", *precisions)}
    encoded = rankers["float32"].encode(window)
    variants = {name: partial(ranker.rank, [encoded]) for name, ranker in rankers.items()}
    seconds = time_in_turns(variants, workload.few_repeats)
    figures |= {f"first_{name}": ratios(seconds["float32"], seconds[name]) for name in precisions}

    models = {
        name: PERankRanker(bundled.PE_RANK, workload.encoder, "cpu", precision=name)
        for name in ("float32", *precisions)
    }
    ready = models["float32"].prepare(window.query, window.passages)
    embedded = models["float32"].encode(Window(ready.query, ready.passages))
    variants = {name: partial(model.rank, [embedded]) for name, model in models.items()}
    seconds = time_in_turns(variants, workload.repeats)
    figures |= {f"pe_rank_vectors_{name}": ratios(seconds["float32"], seconds[name]) for name in precisions}

    plain = SentenceTransformer(str(workload.encoder.folder), device="cpu")
    encode = workload.encoder.encode
    encoders = {
        "torch": partial(plain.encode, texts, batch_size=16),
        "float32": partial(encode, texts),
        "bfloat16": partial(encode, texts, "bfloat16"),
    }
    if has_vnni():
        encoders["int8"] = partial(encode, texts, "int8")
    seconds = time_in_turns(encoders, workload.few_repeats)
    return figures | {f"encoder_{name}": ratios(seconds["torch"], each) for name, each in seconds.items()}
