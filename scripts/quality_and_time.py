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

if TYPE_CHECKING:
    from rerank import Reranker


PAGE = Path("docs/evidence/results.md")
PLOT = Path("docs/images/quality-and-time.svg")
#: Candidates of a list.
_DEPTH = 100
#: Name of a cross-encoder → its layers, width and heads.
_CROSS_ENCODERS = {"TinyBERT-L2": (2, 128, 2), "MiniLM-L6": (6, 384, 12)}
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 400, 70, 20, 20, 50
#: Labels that would cover others on the right of their marks: pixels to the right, below, and the end that is there.
_LABELS = {
    "cosine": (0, 18, "middle"),
    "BM25 and cosine": (-10, 4, "end"),
    "TinyBERT-L2, published": (0, -12, "middle"),
    "default, seen before": (0, -12, "middle"),
}
_STYLE = """
text { font: 13px sans-serif; fill: #1f2328 } .paper { fill: #ffffff } .grid { stroke: #d8dee4 }
.ours { fill: #3f51b5 } .other { fill: #8c959f } .published { fill: none; stroke: #bc4c00; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .paper { fill: #0d1117 } .grid { stroke: #30363d }
.ours { fill: #8c9eff } .other { fill: #848d97 } .published { stroke: #f0883e } }
"""

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
    parts = [f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>']
    for ms, label in ((10, "10 ms"), (100, "0.1 s"), (1000, "1 s"), (10_000, "10 s")):
        x = _x(ms)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for quality in (0.5, 0.6, 0.7):
        y = _y(quality)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{quality:.1f}</text>')
    for row in rows:
        x, y = _x(row.ms), _y(row.quality)
        right, below, anchor = _LABELS.get(row.name, (10, 4, "start"))
        parts.append(f'<circle class="{row.kind}" cx="{x}" cy="{y}" r="6"/>')
        parts.append(f'<text x="{x + right:.1f}" y="{y + below:.1f}" text-anchor="{anchor}">{row.name}</text>')
    middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    for place, title in (
        (f'x="{middle_x}" y="{_HEIGHT - 10}"', "CPU time of one core for 100 passages"),
        (f'transform="translate(16 {middle_y}) rotate(-90)"', "nDCG@10 on TREC DL 2019"),
    ):
        parts.append(f'<text {place} text-anchor="middle">{title}</text>')
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{_STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _x(ms: float) -> float:
    """Pixels from the left: 3 ms or less at the axis, 40 s at the right end."""
    low, high = math.log10(3), math.log10(40_000)
    share = (math.log10(max(ms, 3)) - low) / (high - low)
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(quality: float) -> float:
    low, high = 0.48, 0.76
    return round(_HEIGHT - _BOTTOM - (quality - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)


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
