"""Console output for people: tables. Programs use --json instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToDict
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rerank.util.terminal import escape_control_chars

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb

#: Longer ids continue on the next line.
_DOC_ID_WIDTH = 24
#: Kind of the scores → its name in the head of their column; any other kind is a log-probability.
_SCORES = {
    "SCORE_KIND_RANK": "by rank",
    "SCORE_KIND_POINTWISE": "pointwise",
    "SCORE_KIND_POINTWISE_PROBABILITY": "probability",
    "SCORE_KIND_WINDOW_SCORE": "of the model",
}


def results_table(title: str, response: pb.RerankResponse, verbose: bool = False, is_narrow: bool = False) -> Table:
    """A table of results: rank, rank before, score, relevance, doc_id and start of the text.

    Args:
        verbose: adds the scores of the first stage.
        is_narrow: for terminals of less than 80 columns: leaves out the rank before, and puts passages below doc_ids.
    """
    from rerank.v1 import rerank_pb2 as pb

    meaning = _SCORES.get(pb.ScoreKind.Name(response.score_kind), "log-prob")
    has_relevance = any(result.HasField("relevance") for result in response.results)
    columns = ["rank", *([] if is_narrow else ["was"]), f"score:\n{meaning}"]
    columns += [*(["relevance"] if has_relevance else []), *(["first\nstage"] if verbose else [])]
    # Scores of models with logits differ from processor to processor from the third digit on.
    digits = {pb.SCORE_KIND_RANK: "g", pb.SCORE_KIND_POINTWISE_PROBABILITY: ".4f"}.get(response.score_kind, ".2f")
    table = plain_table(title)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    if is_narrow:
        table.add_column("doc_id\npassage")
    else:
        longest = max((len(result.doc_id) for result in response.results), default=0)
        table.add_column("doc_id", overflow="fold", width=min(max(longest, len("doc_id")), _DOC_ID_WIDTH))
        table.add_column("passage")  # the one column that may shrink
    for rank, result in enumerate(response.results, start=1):
        was = [] if is_narrow else [str(result.original_position + 1)]
        score = f"{result.score:{digits}}"
        relevance = [f"{result.relevance:.2f}" if result.HasField("relevance") else ""] if has_relevance else []
        first_stage = f"{result.first_stage_score:.4f}" if result.HasField("first_stage_score") else ""
        passage = one_line(result.text)
        texts = [one_line(result.doc_id).append("\n").append(passage)] if is_narrow else [result.doc_id, passage]
        table.add_row(str(rank), *was, score, *relevance, *([first_stage] if verbose else []), *texts)
    return table


def plain_table(title: str = "") -> Table:
    """An empty table without lines between its cells."""
    return Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def execution_line(execution: pb.Execution) -> str:
    """A summary on one line: model, strategy, cost and latency."""
    notes = [
        f"{execution.model}, {execution.strategy}",
        f"{execution.windows} window{'' if execution.windows == 1 else 's'}",
        f"{execution.tokens:,} tokens",
        f"{execution.total_ms:.0f} ms",
    ]
    return " · ".join(notes)


def warnings_of(execution: pb.Execution) -> list[str]:
    """The warnings of a reply: failures, incomplete rankings, truncated texts, and the model's own warnings."""
    truncated = len(execution.truncated_doc_ids)
    warnings = [
        f"the first stage's order instead of {execution.failure}" if execution.failure else "",
        execution.reason,
        execution.model_warning,
        "the query was truncated" if execution.query_truncated else "",
        f"{truncated} passage{' was' if truncated == 1 else 's were'} truncated" if truncated else "",
    ]
    return [f"warning: {warning}" for warning in warnings if warning]


def feedback_line(report: pb.FeedbackReport) -> str:
    """The effect of relevance feedback, on one line."""
    return f"feedback: {report.reason or f'the query vector moved to cosine {report.cosine:.3f}'}"


def models_table(response: pb.ListModelsResponse, is_narrow: bool = False) -> Table:
    """A table of the models that requests may name; the default one has a star.

    Args:
        is_narrow: for terminals of less than 80 columns: leaves out the largest window, and what the model supports.
    """
    table = plain_table()
    for column in ("model", "ranker"):
        table.add_column(column, no_wrap=True)
    table.add_column("strategy", overflow="fold")
    if not is_narrow:
        table.add_column("largest\nwindow", justify="right")
        table.add_column("supports", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for index, model in enumerate(response.models):
        name = model.name if index else f"{model.name} *"
        supported = {"instruction": model.reads_instruction, "relevance": model.gives_relevance}
        names = "\n".join(name for name, has in supported.items() if has)
        known = [str(model.max_window_size), names] if model.is_loaded or model.load_s else ["", ""]
        table.add_row(name, model.ranker, model.default_strategy, *([] if is_narrow else known), _status(model))
    return table


def _status(model: pb.Model) -> str:
    """The state of a model: served or not, with the memory and time that loading it took."""
    if model.problem:
        return "not served"
    gb, load_s = f"{model.memory_bytes / 1e9:.2f}", f"{model.load_s:.1f}"
    cost = (
        "" if (gb, load_s) == ("0.00", "0.0") else f"{gb} GB, {load_s} s"
    )  # the model only uses encoders that were loaded before
    cost += f"\n{model.gpu_memory_bytes / 1e9:.2f} GB of GPU" if model.gpu_memory_bytes else ""
    return "served" + f"\n{cost}" * bool(cost) if model.is_loaded else "loaded on\nrequest" + f"\n{cost}" * bool(cost)


def fields_table(title: str, message: pb.Execution | pb.FeedbackReport) -> Table:
    """A table of the fields of a message and their values, in words."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    for name, value in _in_words(fields):
        table.add_row(name, value)
    return table


def one_line(text: str) -> Text:
    """A text on one line, cut to the width of the terminal."""
    return Text(escape_control_chars(" ".join(text.split())), no_wrap=True, overflow="ellipsis")


def _in_words(fields: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Name and value of each field."""
    for name, value in fields.items():
        text = _formatted(value).removeprefix(f"{name.upper()}_")
        yield name.removesuffix("_ms").replace("_", " "), f"{text} ms" if name.endswith("_ms") else text


def _formatted(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_formatted, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "-"
