"""`build-lists` from its flags to a file, for small sources and with the real encoder."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from rerank_training.build_lists import build_lists
from rerank_training.lists.building import build_list
from rerank_training.lists.files import read_lists
from rerank_training.lists.sampling import ListSampling, make_pool
from rerank_training.lists.settings import BuildListsSettings, QuerySource, TeacherName
from rerank_training.lists.teachers import by_grades
from rerank_training.lists.training_list import TrainingList

from rerank.errors import CollectionError, ConfigError
from rerank.types import Candidate, Passage, Query

POOL = make_pool(Query("q?", "origin/1"), [Candidate(Passage(doc_id, f"text {doc_id}")) for doc_id in "abc"], {"b": 1})


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    folder = tmp_path / "dl"
    folder.mkdir()
    texts = ["Deserts are dry.", "A flea lives a year.", "Fleas are insects.", "The moon is far.", "Violins sound."]
    candidates = [
        {"docid": f"d{number}", "score": 9.0 - number, "doc": {"contents": text}} for number, text in enumerate(texts)
    ]
    row = {"query": {"qid": "7", "text": "how long does a flea live"}, "candidates": candidates}
    (folder / "requests.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (folder / "qrels.txt").write_text("7 0 d1 3\n7 0 d2 1\n", encoding="utf-8")
    return folder / "requests.jsonl"


def settings(out: Path, teacher: str, **changed: object) -> BuildListsSettings:
    return BuildListsSettings(out=out, teacher=TeacherName(teacher), **{"passages": "3", **changed})  # type: ignore[arg-type]


def built(out: Path, teacher: str, **changed: object) -> list[TrainingList]:
    build_lists(settings(out, teacher, **changed))
    return read_lists(out)


def ids(item: TrainingList) -> list[str]:
    return [passage.doc_id for passage in item.passages]


def test_list_without_anything_to_learn_is_refused() -> None:
    with pytest.raises(CollectionError, match="all passages equally relevant"):
        build_list(POOL, [], lambda _, passages: (1.0,) * len(passages), ListSampling(3, 3), Random(0))
    with pytest.raises(CollectionError, match="fewer than two passages"):
        build_list(make_pool(Query("q?"), [], {}), [], by_grades, ListSampling(3, 3), Random(0))


def test_requests_with_qrels(requests: Path, tmp_path: Path) -> None:
    files = {"requests": requests, "qrels": requests.parent / "qrels.txt"}
    lists = built(tmp_path / "out.jsonl", "qrels", **files, passages="2-5", lists_per_query=20)
    assert [item.query.query_id for item in lists[:2]] == ["dl/7", "dl/7#2"]
    assert {len(item.passages) for item in lists} == {2, 3, 4, 5}
    grades = {"d1": 3.0, "d2": 1.0}
    for item in lists:
        assert ids(item) == sorted(ids(item))  # the first stage's order
        assert list(item.relevance) == [grades.get(doc_id, 0.0) for doc_id in ids(item)]


def test_collection_with_sentences(beir_folder: Path, tmp_path: Path) -> None:
    lists = built(tmp_path / "out.jsonl", "cosine", collection=str(beir_folder), depth=5, passages="5")
    assert len(lists) == 12
    for item in lists:
        assert item.query.query_id == f"twelve/{ids(item)[0]}/sentences"  # no passage is closer than its own
        assert list(item.relevance) == sorted(item.relevance, reverse=True)


def test_collection_with_judged_queries_of_a_file(beir_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").symlink_to(beir_folder / "corpus.jsonl")
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "pull of the moon"}\n', encoding="utf-8")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("q\td\ts\n1\tviolin\t2\n", encoding="utf-8")
    options = {"queries": QuerySource.FILE, "depth": 3, "name": "mine"}
    (item,) = built(tmp_path / "out.jsonl", "qrels", collection=str(tmp_path), **options)
    assert item.query.query_id == "mine/1"
    assert dict(zip(ids(item), item.relevance, strict=True))["violin"] == 2.0


def test_questions_with_answers_graded_by_a_reranker(tmp_path: Path) -> None:
    rows = [{"_id": str(n), "question": f"what is number {n}?", "answer": f"it is {n} of many"} for n in range(6)]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "models.yaml").write_text("models: [{name: identity, ranker: identity}]", encoding="utf-8")
    options = {"medquad": tmp_path / "qa.jsonl", "limit": 4, "depth": 4, "config": tmp_path / "models.yaml"}
    lists = built(tmp_path / "out.jsonl", "reranker", **options, model="identity")
    assert [item.relevance for item in lists] == [(3.0, 2.0, 1.0)] * 4
    assert {doc_id for item in lists for doc_id in ids(item)} == {item.query.query_id.split("/")[1] for item in lists}


def test_skipped_lists_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"_id": str(n), "question": f"why {n}?", "answer": answer} for n, answer in enumerate(["a", "b", "a"])]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = {"medquad": tmp_path / "qa.jsonl", "random_share": 1.0, "lists_per_query": 2, "passages": "2"}
    assert len(built(tmp_path / "out.jsonl", "qrels", **options)) == 6
    assert "skipped lists" not in capsys.readouterr().out
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, [*rows[:2], {**rows[2], "question": "b"}])))
    assert len(built(tmp_path / "fewer.jsonl", "qrels", **options)) == 4
    assert "skipped lists: 2, fewer than two passages" in capsys.readouterr().out


def test_judgements_of_other_queries_are_refused(requests: Path, tmp_path: Path) -> None:
    qrels = tmp_path / "other.txt"
    qrels.write_text("8 0 d1 1\n9 0 d1 1\n", encoding="utf-8")
    with pytest.raises(
        CollectionError, match=r"none of the 1 queries is judged in .*other\.txt \(2 queries\); give .*'7'.*'8'"
    ):
        built(tmp_path / "out.jsonl", "qrels", requests=requests, qrels=qrels)


def test_existing_file_is_not_replaced(requests: Path, tmp_path: Path) -> None:
    files = {"requests": requests, "qrels": requests.parent / "qrels.txt"}
    for name in ("out.jsonl", "out-held-out.jsonl"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"{name} exists already; remove it first or choose another --out"):
            built(tmp_path / "out.jsonl", "qrels", **files, held_out_share=0.5)
        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"
        (tmp_path / name).unlink()


def test_held_out_share_writes_two_files_without_a_common_query(beir_folder: Path, tmp_path: Path) -> None:
    options = {"collection": str(beir_folder), "random_share": 1.0, "lists_per_query": 3, "held_out_share": 0.25}
    lists = built(tmp_path / "out.jsonl", "qrels", **options)
    held_out = read_lists(tmp_path / "out-held-out.jsonl")
    assert (len(lists), len(held_out)) == (27, 9)
    queries, others = ({item.query.query_id.partition("#")[0] for item in part} for part in (lists, held_out))
    assert (len(queries), len(others), queries & others) == (9, 3, set())


def test_held_out_share_that_leaves_no_training_list_is_refused(requests: Path, tmp_path: Path) -> None:
    files = {"requests": requests, "qrels": requests.parent / "qrels.txt"}
    with pytest.raises(CollectionError, match="leaves 0 lists to train on and 1 held out, of 1 queries"):
        built(tmp_path / "out.jsonl", "qrels", **files, held_out_share=0.5)
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give exactly one of --requests, --collection and --medquad"),
        ({"requests": Path("r"), "collection": "c"}, "give exactly one of"),
        ({"requests": Path("r"), "teacher": "qrels"}, "give --qrels"),
        ({"medquad": Path("m"), "qrels": Path("q")}, "--qrels is for --requests"),
        ({"medquad": Path("m"), "teacher": "fusion"}, "--teacher fusion needs first-stage scores"),
        ({"requests": Path("r"), "passages": "1"}, "--passages 1: expected a number of at least 2"),
        ({"requests": Path("r"), "passages": "9-5"}, "--passages 9-5: expected"),
        ({"requests": Path("r"), "passages": "many"}, "--passages many: expected"),
        (
            {"requests": Path("r"), "depth": 10, "passages": "20"},
            "lists of 20 passages need 20 candidates, but",
        ),
    ],
)
def test_contradicting_options_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path / "out.jsonl", **{"teacher": "cosine", **options})  # type: ignore[arg-type]
