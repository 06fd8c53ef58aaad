"""RerankTransformer in PyTerrier's pipelines and experiments, over a Reranker and over a client of a service.

The package comes from the environment `pyterrier` of `make sdk-tests`. It is not asked for Java.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank import InvalidRequest, RerankClient, Reranker
from tests.fakes import NumberRanker
from tests.serving import Served, reranker_of

pytestmark = pytest.mark.sdk

EXECUTION = ["rerank_model", "rerank_completeness", "rerank_windows", "rerank_ms"]
#: qid → the relevance of its candidates, in the order of the first stage.
LISTS = {"q1": [1, 3, 2], "q2": [5, 4], "q3": [7, 9, 8, 6]}


@pytest.fixture(scope="module")
def pt(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The package. This environment's packages come before the others that it brings."""
    folder: Path = request.config.getoption("--sdk") / "pyterrier"
    (packages,) = folder.absolute().glob("lib/python3*/site-packages")
    sys.path.append(str(packages))
    import pyterrier

    yield pyterrier
    sys.path.remove(str(packages))


@pytest.fixture(scope="module")
def local() -> Iterator[Reranker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rerank.reranking.blocking.load_reranker", lambda _: reranker_of({"number": NUMBER}))
        reranker = Reranker("identity")
    with reranker:
        yield reranker


NUMBER = NumberRanker()


@pytest.fixture(scope="module")
def client(service: Served) -> Iterator[RerankClient]:
    with RerankClient(service.address) as opened:
        yield opened


@pytest.fixture(params=["local", "client"])
def transformer(request: pytest.FixtureRequest, pt: Any) -> Callable[..., Any]:
    """Makes a transformer over the model `number`, which is perfect."""
    from rerank.integrations.pyterrier import RerankTransformer

    reranker = request.getfixturevalue(request.param)
    return lambda **options: RerankTransformer(reranker, **{"model": "number"} | options)


@pytest.fixture
def results() -> Any:
    """A frame of first-stage results of LISTS, in mixed order, with a further column."""
    import pandas as pd

    rows = [
        {"qid": qid, "query": f"query {qid}", "docno": f"{qid}-d{number}", "text": f"relevance {number}",
         "score": 10.0 - rank, "rank": rank, "url": f"/{qid}/{rank}"}
        for qid, numbers in LISTS.items()
        for rank, number in enumerate(numbers)
    ]  # fmt: skip
    return pd.DataFrame(rows).sort_values("rank", ascending=False).reset_index(drop=True)


def orders(found: Any) -> dict[str, list[int]]:
    """qid → the relevance of its rows, in the order of the column `rank`."""
    in_order = found.sort_values(["qid", "rank"])
    return {qid: [int(text.split()[1]) for text in rows["text"]] for qid, rows in in_order.groupby("qid")}


def test_each_query_is_reranked_and_all_columns_stay(transformer, results):
    found = transformer()(results)
    assert orders(found) == {qid: sorted(numbers, reverse=True) for qid, numbers in LISTS.items()}
    assert [*found.columns] == [*results.columns, *EXECUTION]
    assert (found["url"] == found["docno"].map(results.set_index("docno")["url"])).all()
    for _, rows in found.groupby("qid"):
        assert [*rows["rank"]] == [*range(len(rows))]
        assert rows["score"].is_monotonic_decreasing
    assert {*found["rerank_model"]} == {"number"}
    assert {*found["rerank_completeness"]} == {"full"}
    assert (found["rerank_windows"] >= 1).all()
    assert (found["rerank_ms"] > 0).all()


def test_first_stage_order_is_that_of_rank_then_score(local, pt, results):
    from rerank.integrations.pyterrier import RerankTransformer

    transformer = RerankTransformer(local, model="number")
    for columns in (["rank", "score"], ["rank"], ["score"]):
        NUMBER.encoded.clear()
        transformer(results[["qid", "query", "docno", "text", *columns]])
        seen = [[int(passage.text.split()[1]) for passage in window.passages] for window in NUMBER.encoded]
        assert sorted(seen) == sorted(LISTS.values())


def test_equal_texts_are_read_once_without_rank_and_score(local, pt, results):
    """The list is unordered then."""
    import pandas as pd

    from rerank.integrations.pyterrier import RerankTransformer

    twice = pd.concat([results, results.assign(docno=results["docno"] + " again")], ignore_index=True)
    for columns, times in ((["rank"], 2), ([], 1)):
        NUMBER.encoded.clear()
        found = RerankTransformer(local, model="number")(twice[["qid", "query", "docno", "text", *columns]])
        assert sum(len(window.passages) for window in NUMBER.encoded) == times * len(results)
        assert len(found) == len(twice)


def test_operators_and_top_n_cut_and_compose(transformer, pt, results):
    first_stage = pt.Transformer.from_df(results)
    queries = results[["qid", "query"]].drop_duplicates()
    best = {qid: sorted(numbers, reverse=True) for qid, numbers in LISTS.items()}
    assert orders((first_stage >> transformer() % 2)(queries)) == {qid: order[:2] for qid, order in best.items()}
    assert orders((first_stage % 2 >> transformer())(queries)) == {
        qid: sorted(numbers[:2], reverse=True) for qid, numbers in LISTS.items()
    }
    assert orders((first_stage >> transformer(top_n=1))(queries)) == {qid: order[:1] for qid, order in best.items()}
    again = (first_stage >> transformer() >> transformer(model="number"))(queries)
    assert [*again.columns] == [*results.columns, *EXECUTION]


def test_frame_without_rows_has_the_columns_and_pipelines_can_be_inspected(transformer, pt, results):
    found = transformer()(results.iloc[:0])
    assert len(found) == 0
    assert [*found.columns] == [*results.columns, *EXECUTION]
    assert found.dtypes["rank"] == "int64"
    inputs = pt.inspect.transformer_inputs(transformer())
    assert inputs == [["qid", "query", "docno", "text"]]
    assert set(pt.inspect.transformer_outputs(transformer(), inputs[0])) == {*inputs[0], "score", "rank", *EXECUTION}


def test_missing_text_is_named_with_the_way_out(transformer, pt, results):
    expected = pt.validate.InputValidationError
    with pytest.raises(expected, match=r"missing_columns=\['text'\].*text\.get_text adds"):
        transformer()(results.drop(columns="text"))
    renamed = results.rename(columns={"text": "body"})
    assert len(transformer(text="body")(renamed)) == len(renamed)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("text", float("nan"), "text: query 'q1', docno 'q1-d1' has nan there; give a string"),
        ("query", None, "query: query 'q1', docno 'q1-d1' has nan there; give a string"),
        ("docno", "q1-d3", r"docno: query 'q1' has docno 'q1-d3' more than once; use drop_duplicates"),
    ],
)
def test_row_that_cannot_be_ranked_is_named(transformer, results, column, value, message):
    results.loc[results["docno"] == "q1-d1", column] = value
    with pytest.raises(InvalidRequest, match=message):
        transformer()(results)
