"""Quality against time of one core: measures the times of a table in docs/evidence/results.md, and draws that table.

    python -m scripts.quality_and_time measure --requests requests.jsonl --system default --system PE-Rank
    python -m scripts.quality_and_time draw

A cross-encoder has random weights here, since they do not change its time; its quality is the published one.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from jinja2 import Template

if TYPE_CHECKING:
    from rerank import Reranker


PAGE = Path("docs/evidence/results.md")
PLOT = Path("docs/images/quality-and-time.svg")
TEMPLATE = Path(__file__).with_suffix(".svg.jinja")
#: Candidates of a list.
_DEPTH = 100
#: Name of a cross-encoder → its layers, width and heads.
_CROSS_ENCODERS = {"TinyBERT-L2": (2, 128, 2), "MiniLM-L6": (6, 384, 12)}
#: Labels that would cover others on the right of their marks: pixels to the right, below, and the end that is there.
_LABELS = {
    "cosine": (0, 18, "middle"),
    "BM25 and cosine": (-10, 4, "end"),
    "TinyBERT-L2, published": (0, -12, "middle"),
    "default, seen before": (0, -12, "middle"),
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Point(NamedTuple):
    """A row of the table: CPU milliseconds for a list, and nDCG@10."""

    name: str
    quality: float
    ms: float

    @property
    def kind(self) -> str:
        """The class of its mark: ours, other (a baseline) or published."""
        if "published" in self.name:
            return "published"
        return "ours" if self.name.lower().startswith(("default", "pe-rank", "first")) else "other"


@app.command()
def measure(
    requests: Annotated[Path, typer.Option(help="RankLLM request file (JSONL) with 100 candidates for each query.")],
    system: Annotated[list[str], typer.Option(help="Systems to time, in turns.")],
    lists: Annotated[int, typer.Option(min=1, help="Lists to time; one more warms up.")] = 10,
) -> None:
    """Print the times of each system for a list of texts that it has never seen, and has seen, in milliseconds."""
    import torch  # which the plot does not need

    from rerank.readers.candidates import read_requests

    torch.set_num_threads(1)
    given = [
        (request.query.text, request.candidates[:_DEPTH]) for request in islice(read_requests(requests), lists + 1)
    ]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        load = _systems(Path(folder))
        if unknown := [name for name in system if name not in load]:
            raise typer.BadParameter(f"no system {', '.join(unknown)}: choose from {', '.join(load)}")
        systems = {name: stack.enter_context(load[name]()) for name in system}
        new, seen = ({name: list[tuple[float, float]]() for name in systems} for _ in range(2))
        for query, candidates in given:
            for name, reranker in systems.items():
                run = partial(reranker.rerank, query, candidates)
                new[name].append(_cpu_and_clock_ms(run))
                seen[name].append(_cpu_and_clock_ms(run))
    for name in systems:
        for texts, times in (("new texts", new[name]), ("texts seen before", seen[name])):
            cpu, clock = zip(*times[1:], strict=True)
            p95 = quantiles(clock, n=20, method="inclusive")[18] if len(clock) > 1 else clock[0]
            print(f"{name:20} {texts:17}  CPU {median(cpu):8.0f}  clock {median(clock):8.0f}  p95 {p95:8.0f}")


@app.command()
def draw() -> None:
    """Draw the table "Quality and time" of docs/evidence/results.md as an SVG file."""
    PLOT.write_text(svg(points(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")


def points(page: str) -> list[Point]:
    """The rows of the table under "Quality and time"; the default model twice, with the times of both columns."""
    section = page.partition("## Quality and time\n")[2].partition("\n## ")[0]
    found = list[Point]()
    for row in re.findall(r"^\| (.+?) \| \**(\.\d+)\** \| ([\d,]+) \| ([\d,]+) \|", section, re.MULTILINE):
        name, quality, new, seen = row
        found.append(Point(name.strip("`"), float(quality), float(new.replace(",", ""))))
        if name == "default":
            found.append(Point("default, seen before", float(quality), float(seen.replace(",", ""))))
    return found


def svg(rows: Sequence[Point]) -> str:
    """A scatter plot with a logarithmic axis of time, which browsers show in the reader's light or dark colours."""
    template = Template(TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    return template.render(rows=rows, labels=_LABELS, x=_x, y=_y)


def _x(ms: float) -> float:
    """Pixels from the left: 3 ms or less at the axis, 40 s at the right end."""
    low, high = math.log10(3), math.log10(40_000)
    return round(70 + (math.log10(max(ms, 3)) - low) / (high - low) * 670, 1)


def _y(quality: float) -> float:
    """Pixels from the top: .48 at the axis, .76 at the top end."""
    return round(350 - (quality - 0.48) / (0.76 - 0.48) * 330, 1)


def _cpu_and_clock_ms(run: Callable[[], object]) -> tuple[float, float]:
    cpu_s, clock_s = time.process_time(), time.perf_counter()
    run()
    return (time.process_time() - cpu_s) * 1000, (time.perf_counter() - clock_s) * 1000


def _systems(folder: Path) -> Mapping[str, Callable[[], Reranker]]:
    """Name → loads the system."""
    from rerank_eval.settings import BASELINES

    from rerank import Reranker

    first: dict[str, object] = {"ranker": "first", "precision": "bfloat16"}
    ours: dict[str, dict[str, object]] = {name: dict(settings) for name, settings in BASELINES.items()}
    ours |= {"PE-Rank": {"ranker": "pe-rank"}, "default": {"ranker": "fusion"}, "FIRST": first}
    return {
        **{name: partial(_of_settings, settings) for name, settings in ours.items()},
        "pe-rank-first": partial(Reranker, "pe-rank-first"),
        **{name: partial(_cross_encoder, folder, name) for name in _CROSS_ENCODERS},
    }


def _of_settings(settings: dict[str, object]) -> Reranker:
    from rerank import Reranker
    from rerank.config import load_config

    config = load_config(None, [{"name": "model", **settings}])
    return Reranker(config.model_copy(update={"models": config.models[:1]}))


def _cross_encoder(folder: Path, name: str) -> Reranker:
    """A BERT of this size with random weights, over the default encoder's vocabulary."""
    from transformers import BertConfig, BertForSequenceClassification

    from rerank import Reranker
    from rerank.models.encoder import Encoder

    layers, width, heads = _CROSS_ENCODERS[name]
    tokenizer = Encoder(device="cpu").copy_tokenizer()
    tokenizer.model_max_length = 512
    size: dict[str, Any] = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    size |= {"num_attention_heads": heads, "num_labels": 1}
    BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    return Reranker(folder / name)


if __name__ == "__main__":
    app()
