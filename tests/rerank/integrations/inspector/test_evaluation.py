"""The results of an evaluation, read from the files that it wrote, and the page about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.measures import MAIN_MEASURE, Evaluator, measures_from
from starlette.testclient import TestClient

from rerank.collections import beir
from rerank.errors import CollectionError, NotFound
from rerank.integrations.inspector.evaluation import FIRST_STAGE as FIRST_STAGE_NAME
from rerank.integrations.inspector.evaluation import Evaluation, read_evaluation
from rerank.integrations.inspector.evaluation_app import evaluation_app
from rerank.types import ScoredDoc
from tests.conftest import PASSAGES
from tests.rerank.integrations.inspector.results import EXECUTION, FIRST_STAGE, QUERIES, write_collection, write_system

LISTEN = "127.0.0.1:8081"
BETTER = {"q1": ("tides", "moon", "glacier", "desert"), "q2": ("flea", "flea-bite", "cello")}


@pytest.fixture
def collection(beir_folder: Path, tmp_path: Path) -> Path:
    return write_collection(tmp_path / "twelve", beir_folder)


@pytest.fixture
def results(collection: Path, tmp_path: Path) -> Path:
    """Results of two systems."""
    out = tmp_path / "results"
    write_system(out / "number", {"ranker": "number"}, BETTER, collection)
    write_system(out / "oracle", {"ranker": "oracle"}, FIRST_STAGE, collection, execution={})
    return out


@pytest.fixture
def evaluation(results: Path) -> Evaluation:
    return read_evaluation(results)


def test_values_are_those_of_the_evaluation(evaluation: Evaluation, collection: Path) -> None:
    evaluator = Evaluator(measures_from(), beir.qrels(collection))
    runs = {FIRST_STAGE_NAME: FIRST_STAGE, "number": BETTER, "oracle": FIRST_STAGE}
    overview = evaluation.overview()
    assert [system["name"] for system in overview["systems"]] == list(runs)
    assert {query["query_id"]: query["text"] for query in overview["queries"]} == QUERIES
    for name, orders in runs.items():
        run = {query: [ScoredDoc(id_, -place) for place, id_ in enumerate(ids)] for query, ids in orders.items()}
        expected = evaluator.evaluate(run)
        found = {query["query_id"]: query["values"][name] for query in overview["queries"]}
        assert found == pytest.approx({query: row[MAIN_MEASURE] for query, row in expected.per_query.items()})
        (mean,) = [system["mean"] for system in overview["systems"] if system["name"] == name]
        assert mean == pytest.approx(expected.mean[MAIN_MEASURE])


def test_ranking_has_texts_first_stage_positions_and_grades(evaluation: Evaluation) -> None:
    ranking = evaluation.ranking("number", "q1")
    assert [row["doc_id"] for row in ranking["results"]] == list(BETTER["q1"])
    assert [row["original_position"] for row in ranking["results"]] == [3, 2, 0, 1]
    assert ranking["results"][0]["text"] == " ".join(PASSAGES["tides"])
    assert ranking["grades"] == {"moon": 1, "tides": 2, "desert": 0}
    assert ranking["execution"] == EXECUTION


@pytest.mark.parametrize(("system", "query_id"), [("nobody", "q1"), ("number", "q9"), ("", "")])
def test_ranking_that_does_not_exist_is_not_found(evaluation: Evaluation, system: str, query_id: str) -> None:
    with pytest.raises(NotFound, match=rf"no ranking of query '{query_id}' by system '{system}'"):
        evaluation.ranking(system, query_id)


def test_damaged_file_is_named(results: Path) -> None:
    (results / "number" / "measures.json").write_text("{", encoding="utf-8")
    with pytest.raises(CollectionError, match=r"number/measures\.json cannot be read"):
        read_evaluation(results)


def test_page_about_an_evaluation(evaluation: Evaluation) -> None:
    client = TestClient(evaluation_app(evaluation, LISTEN), base_url=f"http://{LISTEN}")
    assert "<title>Evaluation" in client.get("/").text
    assert client.get("/inspector/evaluation").json() == evaluation.overview()
    query = {"system": "number", "query_id": "q2"}
    assert client.get("/inspector/evaluation/ranking", params=query).json() == evaluation.ranking("number", "q2")
    missing = client.get("/inspector/evaluation/ranking")
    assert missing.status_code == 404
    assert missing.json()["message"].startswith("there is no ranking of query ''")


@pytest.mark.parametrize("path", ["/", "/inspector/evaluation", "/inspector/evaluation/ranking", "/nothing"])
def test_other_host_names_are_refused(evaluation: Evaluation, path: str) -> None:
    """A page of evil.example, whose name was made to point at 127.0.0.1, would be of the same origin."""
    client = TestClient(evaluation_app(evaluation, LISTEN))
    reply = client.get(path, headers={"host": "evil.example:8081"})
    assert reply.status_code == 400
    assert reply.json()["message"].startswith("the host 'evil.example:8081' is not one of 127.0.0.1, ::1, localhost, ")
    assert client.get("/", headers={"host": "localhost:8081"}).status_code == 200
    insecure = TestClient(evaluation_app(evaluation, "0.0.0.0:8081", insecure=True))
    assert insecure.get("/inspector/evaluation", headers={"host": "results.example"}).status_code == 200
