"""Console output: tables that stay readable on terminals of 80 and of 60 columns, whatever their texts hold."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from rerank.commands.display import fields_table, models_table, results_table, warnings_of
from rerank.commands.query import show_response
from rerank.commands.rank import RankSettings
from rerank.v1 import rerank_pb2 as pb

TITLE = "how long does a flea live"


def response(score_kind: int, doc_id: str = "msmarco_passage_03_1234") -> pb.RerankResponse:
    """100 results whose passages are longer than a line."""
    same = {"first_stage_score": 0.1, "text": "flea " * 99}
    results = [
        pb.RankedCandidate(doc_id=f"{doc_id}{rank}", original_position=99 - rank, score=-rank / 7, **same)
        for rank in range(100)
    ]
    return pb.RerankResponse(results=results, score_kind=score_kind)


def lines(table: Table, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()


def printed(message: pb.RerankResponse, verbose: bool = False) -> list[str]:
    return lines(results_table(TITLE, message, verbose))


@pytest.mark.parametrize("verbose", [False, True])
def test_table_of_80_columns_shows_rank_id_score_and_passage(verbose):
    rows = printed(response(pb.SCORE_KIND_WINDOW_LOG_PROB, "msmarco_passage_03_12"), verbose)
    assert all(len(row) <= 80 for row in rows)
    (last,) = (row for row in rows if "msmarco_passage_03_1299" in row)
    cells = last.split()
    assert cells[:3] == ["100", "1", "-14.14"]
    assert cells[3 + verbose : 5 + verbose] == ["msmarco_passage_03_1299", "flea"]
    assert len(rows) == 100 + len(printed(pb.RerankResponse(), verbose))


def test_table_of_60_columns_gives_a_line_of_its_own_to_the_passage():
    table = results_table(TITLE, response(pb.SCORE_KIND_WINDOW_SCORE), is_narrow=True)
    *_, with_id, with_passage = lines(table, 60)
    assert with_id.split() == ["100", "-14.14", "msmarco_passage_03_123499"]
    assert with_passage.split().count("flea") >= 6
    assert max(map(len, lines(table, 60))) <= 60


def test_models_fit_80_and_60_columns_with_their_whole_names():
    names = {"name": "pe-rank-first", "ranker": "cross-encoder", "problem": "gone"}
    names["default_strategy"] = "cascade(pe-rank, 15) + 0.2 first stage"
    is_all = dict.fromkeys(("is_loaded", "reads_instruction", "gives_relevance"), True)
    response = pb.ListModelsResponse(models=[pb.Model(max_window_size=1000, **names, **is_all)])
    rows = lines(models_table(response))
    assert max(map(len, rows)) <= 80
    assert any({"pe-rank-first", "cross-encoder", "1000"} <= set(row.split()) and "not served" in row for row in rows)
    assert {"window", "instruction", "relevance"} <= set(" ".join(rows).split()), "no word is divided"
    response.models[0].ranker = "generation"
    narrow = lines(models_table(response, is_narrow=True), 60)
    assert max(map(len, narrow)) <= 60
    assert {"pe-rank-first", "generation", "strategy", "cascade(pe-rank,"} <= set(" ".join(narrow).split())


@pytest.mark.parametrize(
    ("gpu_bytes", "status"), [(0, ["served", "1.30 GB, 12.0 s"]), (14_500_000_000, ["14.50 GB of GPU"])]
)
def test_loaded_model_shows_its_time_and_memory(gpu_bytes, status):
    model = pb.Model(name="m", is_loaded=True, load_s=12, memory_bytes=1_300_000_000, gpu_memory_bytes=gpu_bytes)
    rows = lines(models_table(pb.ListModelsResponse(models=[model])))
    assert all(any(line in row for row in rows) for line in status)
    assert any("GPU" in row for row in rows) == bool(gpu_bytes)


@pytest.mark.parametrize("load_s", [0, 0.03])
def test_model_that_added_nothing_to_the_encoders_shows_no_zeros(load_s):
    model = pb.Model(name="m", is_loaded=True, load_s=load_s, memory_bytes=3_000_000)
    rows = lines(models_table(pb.ListModelsResponse(models=[model])))
    assert any("served" in row for row in rows)
    assert "0.0" not in "".join(rows)


def test_table_has_the_relevance_of_results_that_have_one():
    answer = response(pb.SCORE_KIND_WINDOW_LOG_PROB, "d")
    assert "relevance" not in "".join(printed(answer))
    answer.results[98].relevance = 0.257
    rows = printed(answer)
    assert "relevance" in "".join(rows[:6])
    cells = {row.split()[0]: row.split()[3] for row in rows[-100:]}
    assert (cells["99"], cells["100"]) == ("0.26", "d99")


def test_fields_are_lines_of_words():
    execution = pb.Execution(completeness=pb.COMPLETENESS_FULL, truncated_doc_ids=["a", "b"], queue_ms=0.25)
    text = [" ".join(line.split()) for line in lines(fields_table("execution", execution))]
    for line in ("truncated doc ids a, b", "query truncated no", "queue 0.25 ms", "completeness FULL"):
        assert line in text
    assert not any("_" in line for line in text)


def test_reply_warns_below_its_table_of_all_that_differs_from_a_full_and_exact_order():
    said = {"reason": "the queue is full", "model_warning": "3 of 3 identifiers in what the model wrote were repaired"}
    execution = pb.Execution(failure="OVERLOADED", **said, query_truncated=True, truncated_doc_ids=["a", "b"])
    truncated = ["the query was truncated", "2 passages were truncated"]
    warnings = ["the first stage's order instead of OVERLOADED", *said.values(), *truncated]
    assert warnings_of(execution) == [f"warning: {text}" for text in warnings]
    assert warnings_of(pb.Execution(model="m", tokens=3)) == []


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("took", ["", "ranked in 5 ms"])
def test_every_table_shows_the_warnings(capsys, verbose, took):
    """In process, with the time that it took, and over a target."""
    reply = response(pb.SCORE_KIND_RANK)
    reply.execution.model_warning = "the query is in another language"
    show_response(reply, TITLE, RankSettings(verbose=verbose), took)
    shown = capsys.readouterr()
    text = " ".join(f"{shown.out} {shown.err}".split())
    assert "warning: the query is in another language" in text
    assert took in text
