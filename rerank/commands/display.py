"""Console output for people: tables. Programs use --json instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToDict
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb

#: Longer ids continue on the next line.
_DOC_ID_WIDTH = 24


def results_table(title: str, response: pb.RerankResponse | pb.SearchResponse, verbose: bool = False) -> Table:
    """A table of results, readable at 80 columns: rank, rank before, score, relevance, doc_id and start of the text.

    `verbose` adds the scores of the first stage.
    """
    from rerank.v1 import rerank_pb2 as pb

    by_rank = response.score_kind == pb.SCORE_KIND_RANK
    table = Table(title=title, title_justify="left")
    meaning = {
        pb.SCORE_KIND_RANK: "by rank",
        pb.SCORE_KIND_INTERPOLATED: "interpolated",
        pb.SCORE_KIND_POINTWISE: "pointwise",
        pb.SCORE_KIND_POINTWISE_PROBABILITY: "probability",
        pb.SCORE_KIND_WINDOW_SCORE: "of the model",
    }
    has_relevance = any(result.HasField("relevance") for result in response.results)
    columns = ["rank", "was", f"score:\n{meaning.get(response.score_kind, 'log-prob')}"]
    for column in [*columns, "relevance"] if has_relevance else columns:
        table.add_column(column, justify="right", no_wrap=True)
    if verbose:
        table.add_column("first\nstage", justify="right", no_wrap=True)
    longest = max((len(result.doc_id) for result in response.results), default=0)
    table.add_column("doc_id", overflow="fold", width=min(max(longest, len("doc_id")), _DOC_ID_WIDTH))
    table.add_column("passage")
    for rank, result in enumerate(response.results, start=1):
        score = f"{result.score:g}" if by_rank else f"{result.score:.4f}"
        first_stage = f"{result.first_stage_score:.4f}" if result.HasField("first_stage_score") else ""
        relevance = [f"{result.relevance:.2f}" if result.HasField("relevance") else ""] if has_relevance else []
        row = [str(rank), str(result.original_position + 1), score, *relevance, *([first_stage] if verbose else [])]
        table.add_row(*row, result.doc_id, one_line(result.text))  # the one column that may shrink
    return table


def execution_line(execution: pb.Execution) -> str:
    """One line on the execution: model, strategy, cost, latency, and what deviates from the full and exact order."""
    reason, truncated = execution.interpolation.reason, len(execution.truncated_doc_ids)
    notes = [
        f"{execution.model}, {execution.strategy}",
        f"{execution.windows} windows",
        f"{execution.tokens:,} tokens",
        f"{execution.total_ms:.0f} ms",
        f"{execution.cached_vectors} vectors of earlier requests" if execution.cached_vectors else "",
        f"instead of {execution.failure}" if execution.failure else "",
        execution.reason,
        f"no interpolation: {reason}" if reason else "",
        execution.model_warning,
        f"{truncated} truncated" if truncated else "",
        f"{len(execution.set_back)} set back" if execution.set_back else "",
        f"{len(execution.dropped)} near duplicates dropped" if execution.dropped else "",
        f"{execution.repaired_identifiers} repaired" if execution.repaired_identifiers else "",
    ]
    return " · ".join(note for note in notes if note)


def feedback_line(report: pb.FeedbackReport) -> str:
    """The effect of relevance feedback, on one line."""
    effect = f"{report.new_passages} new passages" if report.updated else f"query vector unchanged: {report.reason}"
    return f"feedback: {effect}"


def models_table(response: pb.ListModelsResponse) -> Table:
    """A table of the models that requests may name; the default one has a star."""
    table = Table()
    for column in ("model", "ranker", "strategy", "largest window", "instruction", "relevance", "status"):
        table.add_column(column, overflow="fold")
    for model in response.models:
        name = f"{model.name} *" if model.is_default else model.name
        instruction = "read" if model.reads_instruction else "refused"
        status = model.problem or (f"served; {model.warning}" if model.warning else "served")
        of_model = [name, model.ranker, model.default_strategy, str(model.max_window_size), instruction]
        table.add_row(*of_model, "given" if model.gives_relevance else "none", status)
    return table


def fields_table(title: str, message: pb.Execution | pb.FeedbackReport) -> Table:
    """A table of the fields of a message and their values, as protobuf writes them in JSON."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    for name, value in fields.items():
        table.add_row(name, _formatted(value))
    return table


def one_line(text: str) -> Text:
    """A text on one line; a terminal shows as much as fits."""
    return Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")


def _formatted(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "-"
