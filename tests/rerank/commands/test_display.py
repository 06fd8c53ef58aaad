"""Console output: tables that stay readable on a terminal of 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rerank.commands.display import execution_line, fields_table, results_table
from rerank.v1 import rerank_pb2 as pb

TITLE = "how long does a flea live"


def response(score_kind: int, doc_id: str = "msmarco_passage_03_1234") -> pb.RerankResponse:
    """100 results whose passages are longer than a line."""
    results = [
        pb.RankedCandidate(
            doc_id=f"{doc_id}{rank}",
            original_position=99 - rank,
            score=-rank / 7,
            first_stage_score=0.1,
            text="flea " * 99,
        )
        for rank in range(100)
    ]
    return pb.RerankResponse(results=results, score_kind=score_kind)  # type: ignore[arg-type]


def printed(message: pb.RerankResponse, verbose: bool = False) -> list[str]:
    console = Console(width=80, file=io.StringIO())
    console.print(results_table(TITLE, message, verbose))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("verbose", [False, True])
def test_table_of_80_columns_shows_rank_id_score_and_passage(verbose: bool) -> None:
    rows = printed(response(pb.SCORE_KIND_WINDOW_LOG_PROB, "msmarco_passage_03_12"), verbose)
    assert all(len(row) <= 80 for row in rows)
    (last,) = (row for row in rows if "msmarco_passage_03_1299" in row)
    cells = [cell.strip() for cell in last.strip("│").split("│")]
    assert cells[:3] == ["100", "1", "-14.1429"]
    assert cells[-2] == "msmarco_passage_03_1299"
    assert cells[-1].startswith("flea flea ")
    assert len(rows) == 100 + len(printed(pb.RerankResponse(), verbose))


def test_table_has_the_relevance_of_results_that_have_one() -> None:
    answer = response(pb.SCORE_KIND_WINDOW_LOG_PROB, "d")
    assert "relevance" not in "".join(printed(answer))
    answer.results[98].relevance = 0.257
    rows = printed(answer)
    assert "relevance" in "".join(rows[:6])
    cells = {row.split("│")[1].strip(): row.split("│")[4].strip() for row in rows if row.startswith("│")}
    assert (cells["99"], cells["100"]) == ("0.26", "")


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        (pb.SCORE_KIND_RANK, "by rank"),
        (pb.SCORE_KIND_WINDOW_LOG_PROB, "log-prob"),
        (pb.SCORE_KIND_INTERPOLATED, "interpolated"),
    ],
)
def test_score_column_names_the_meaning_of_the_scores(kind: int, header: str) -> None:
    assert header in "".join(printed(response(kind))[:6])


@pytest.mark.parametrize(
    ("execution", "line"),
    [
        (
            pb.Execution(model="pe-rank", strategy="sliding(20/10)", windows=9, tokens=3600, total_ms=45.3),
            "pe-rank, sliding(20/10) · 9 windows · 3,600 tokens · 45 ms",
        ),
        (
            pb.Execution(reason="deadline reached", truncated_doc_ids=["a", "b"], repaired_identifiers=3),
            " · deadline reached · 2 truncated · 3 repaired",
        ),
        (
            pb.Execution(interpolation=pb.InterpolationReport(first_stage=0.25, reason="several windows")),
            " · no interpolation: several windows",
        ),
    ],
)
def test_execution_is_one_line_that_names_deviations(execution: pb.Execution, line: str) -> None:
    assert execution_line(execution).endswith(line)


def test_fields_are_lines_of_messages_and_of_ids() -> None:
    report = pb.InterpolationReport(first_stage=0.25, applied=True)
    console = Console(width=80, file=io.StringIO())
    console.print(fields_table("execution", pb.Execution(interpolation=report, truncated_doc_ids=["a", "b"])))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert '"first_stage": 0.25' in text
    lines = [line.split() for line in text.splitlines()]
    assert any({"truncated_doc_ids", "a,", "b"} <= set(line) for line in lines)
    assert any({"unscored_doc_ids", "none"} <= set(line) for line in lines)


def test_line_on_the_execution_names_the_failure_in_whose_place_the_order_stands() -> None:
    execution = pb.Execution(model="m", strategy="single(20)", failure="OVERLOADED", reason="the queue had no room")
    assert " · instead of OVERLOADED · the queue had no room" in execution_line(execution)
    assert "instead of" not in execution_line(pb.Execution(model="m", strategy="single(20)"))
