"""Draws what reranking changed as a bump chart: an SVG from the JSON that `rerank search --json` prints.

The README's picture. Its reply came from the index of `make demo`, with `--first-stage bm25 --depth 20 --top-n 20`:

    python scripts/draw_ranking.py docs/ranking.json --query "parse a date string with a known format" \
        --before BM25 --after "the default model" --answer datetime.datetime.strptime --answer time.strptime \
        --out docs/ranking.svg
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape

import typer

app = typer.Typer(add_completion=False)

#: Layout, in pixels: the lines run from _LEFT to _RIGHT.
_WIDTH, _ROW, _TOP, _BOTTOM, _MARGIN = 880, 24, 100, 22, 24
_LEFT, _RIGHT = 318, _WIDTH - 318
#: Space beside the lines for a rank, then for a label of this many monospaced characters.
_RANK_X, _LABEL_X, _LABEL_CHARS = 12, 36, 34
#: Candidates that move by at least this many ranks are coloured.
_COLOURED_FROM = 3
_SANS = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
_MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_STYLE = f"""
  .card {{ fill: #ffffff; stroke: #d0d7de }}
  text {{ font-family: {_MONO}; font-size: 12px }}
  .title, .head, .note {{ font-family: {_SANS} }}
  .title {{ font-size: 16px; font-weight: 600 }} .head {{ font-size: 13px; font-weight: 600 }}
  .line {{ fill: none; stroke-width: 1.5; stroke-linecap: round }} .line.answer {{ stroke-width: 4 }}
  text.answer {{ font-weight: 700 }}
  .title, .head {{ fill: #1f2328 }} .note, text.kept {{ fill: #59636e }} .line.kept {{ stroke: #afb8c1 }}
  text.up {{ fill: #1a7f37 }} .line.up {{ stroke: #4ac26b }}
  text.down {{ fill: #bc4c00 }} .line.down {{ stroke: #f0965a }}
  text.answer {{ fill: #0550ae }} .line.answer {{ stroke: #0969da }}
  @media (prefers-color-scheme: dark) {{
    .card {{ fill: #0d1117; stroke: #3d444d }}
    .title, .head {{ fill: #f0f6fc }} .note, text.kept {{ fill: #9198a1 }} .line.kept {{ stroke: #57606a }}
    text.up {{ fill: #56d364 }} .line.up {{ stroke: #2ea043 }}
    text.down {{ fill: #f0883e }} .line.down {{ stroke: #bd561d }}
    text.answer {{ fill: #79c0ff }} .line.answer {{ stroke: #388bfd }}
  }}
"""


@dataclass(frozen=True)
class Row:
    """A candidate with its 1-based ranks before and after reranking."""

    doc_id: str
    before: int
    after: int
    is_answer: bool = False

    @property
    def css_class(self) -> str:
        """`answer`, `up`, `down` or `kept`: decides the colour of the line and its labels."""
        if self.is_answer:
            return "answer"
        if abs(self.after - self.before) < _COLOURED_FROM:
            return "kept"
        return "up" if self.after < self.before else "down"


@app.command()
def main(
    reply: Annotated[Path, typer.Argument(help="What `rerank search --json` printed.")],
    query: Annotated[str, typer.Option(help="The query, for the title.")],
    out: Annotated[Path, typer.Option(help="The SVG file to write.")],
    before: Annotated[str, typer.Option(help="Name of the first stage.")] = "first stage",
    after: Annotated[str, typer.Option(help="Name of the ranker.")] = "reranked",
    answer: Annotated[
        list[str] | None, typer.Option(help="doc_id of a right answer, drawn in bold; repeatable.")
    ] = None,
) -> None:
    """Draw what reranking changed, from a JSON reply of `rerank search`."""
    out.write_text(chart(read_rows(reply, answer or ()), query, before, after), encoding="utf-8")


def read_rows(reply: Path, answers: Collection[str] = ()) -> list[Row]:
    """The results of a reply in their final order."""
    results = json.loads(reply.read_text(encoding="utf-8"))["results"]
    return [
        Row(result["doc_id"], result["original_position"] + 1, rank, result["doc_id"] in answers)
        for rank, result in enumerate(results, start=1)
    ]


def chart(rows: Sequence[Row], query: str, before: str, after: str) -> str:
    """The SVG text: one line per candidate, from its rank before (left) to its rank after (right)."""
    height = _TOP + _ROW * len(rows) + _BOTTOM
    order = {"kept": 0, "down": 1, "up": 2, "answer": 3}  # what matters most is drawn last, on top
    lines = "".join(_line(row) for row in sorted(rows, key=lambda row: order[row.css_class]))
    labels = "".join(_labels(row) for row in rows)
    title = escape(f"“{query}”")
    note = f"Blue: what the query asks for. Green rose, orange fell, by {_COLOURED_FROM} ranks or more."
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">
<title>{title}: the order of {escape(before)} and the order of {escape(after)} for the same {len(rows)} passages</title>
<style>{_STYLE}</style>
<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="10"/>
<text class="title" x="{_MARGIN}" y="36">{title}</text>
<text class="note" x="{_MARGIN}" y="56">{note}</text>
<text class="head" x="{_LEFT - _RANK_X}" y="{_TOP - 12}" text-anchor="end">{escape(before)}</text>
<text class="head" x="{_RIGHT + _RANK_X}" y="{_TOP - 12}">{escape(after)}</text>
{lines}{labels}</svg>
"""


def _line(row: Row) -> str:
    start, end, middle = _y(row.before), _y(row.after), (_LEFT + _RIGHT) // 2
    curve = f"M{_LEFT} {start}C{middle} {start} {middle} {end} {_RIGHT} {end}"
    return f'<path class="line {row.css_class}" d="{curve}"/>\n'


def _labels(row: Row) -> str:
    name, y_before, y_after = escape(_shortened(row.doc_id)), _y(row.before) + 4, _y(row.after) + 4
    before = _text(row, _LEFT - _LABEL_X, y_before, name, "end") + _text(
        row, _LEFT - _RANK_X, y_before, row.before, "end"
    )
    after = _text(row, _RIGHT + _LABEL_X - 8, y_after, row.after, "end") + _text(
        row, _RIGHT + _LABEL_X, y_after, name, "start"
    )
    return before + after


def _text(row: Row, x: int, y: int, text: object, anchor: str) -> str:
    return f'<text class="{row.css_class}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>\n'


def _y(rank: int) -> int:
    return _TOP + _ROW * rank - _ROW // 2


def _shortened(doc_id: str) -> str:
    """The name, with an ellipsis for the middle parts that do not fit."""
    if len(doc_id) <= _LABEL_CHARS:
        return doc_id
    last = doc_id.rpartition(".")[2]
    parts = doc_id.split(".")[:-1]
    while parts and len(f"{'.'.join(parts)}…{last}") > _LABEL_CHARS:
        parts.pop()
    return f"{'.'.join(parts)}…{last}"


if __name__ == "__main__":
    app()
