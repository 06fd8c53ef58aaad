"""`build-lists`: from its flags to a file, the pools of its sources, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from rerank_training.commands import build_lists
from rerank_training.lists.building import build, open_source
from rerank_training.lists.sampling import Pool
from rerank_training.lists.settings import BuildListsSettings, TeacherName
from rerank_training.lists.training_list import TrainingList, read_lists
from typer.testing import CliRunner

from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from tests.eval.data import judged_collection, request_row, write, write_qrels, write_requests


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    texts = ["Deserts are dry.", "A flea lives a year.", "Fleas are insects.", "The moon is far.", "Violins sound."]
    row = request_row("7", {f"d{place}": text for place, text in enumerate(texts)}, "how long does a flea live")
    write_qrels(tmp_path / "dl" / "qrels.txt", {"7": {"d1": 3, "d2": 1}})
    return write(tmp_path / "dl" / "requests.jsonl", row)


@pytest.fixture
def files(requests: Path) -> dict[str, Path]:
    """The requests and their judgements."""
    return {"requests": requests, "qrels": requests.parent / "qrels.txt"}


def settings(out: Path, teacher: str, **changed: object) -> BuildListsSettings:
    return BuildListsSettings(out=out, teacher=TeacherName(teacher), **{"passages": "3", **changed})  # type: ignore[arg-type]


def built(out: Path, teacher: str, **changed: object) -> list[TrainingList]:
    build(settings(out, teacher, **changed))
    return read_lists(out)


def ids(item: TrainingList) -> list[str]:
    return [passage.doc_id for passage in item.passages]


def test_judged_ids_have_the_form_of_the_requests(requests, tmp_path):
    text = requests.read_text().replace('"d1"', '"https://x.example/a%20flea"').replace('"7"', '"my%20q"')
    requests.write_text(text)
    (tmp_path / "qrels.txt").write_text("my%20q 0 https://x.example/a%20flea 3\n")
    (item,) = built(tmp_path / "out.jsonl", "qrels", requests=requests, qrels=tmp_path / "qrels.txt", passages="5")
    assert dict(zip(ids(item), item.relevance, strict=True))["https://x.example/a%20flea"] == 3.0


def test_requests_with_qrels(files, tmp_path):
    lists = built(tmp_path / "out.jsonl", "qrels", **files, passages="2-5", lists_per_query=20)
    assert [item.query.query_id for item in lists[:2]] == ["dl/7", "dl/7#2"]
    assert {len(item.passages) for item in lists} == {2, 3, 4, 5}
    grades = {"d1": 3.0, "d2": 1.0}
    for item in lists:
        assert ids(item) == sorted(ids(item))  # the first stage's order
        assert list(item.relevance) == [grades.get(doc_id, 0.0) for doc_id in ids(item)]


@pytest.fixture
def collection(beir_folder: Path, tmp_path: Path) -> Path:
    """Four judged queries and another one; one of the four is far from all passages that are relevant for it."""
    texts = ["pull of the moon", "four strings", "dry places", "insects", "not judged"]
    queries = {str(number): text for number, text in enumerate(texts)}
    grades = {str(number): {"violin": 2} for number in range(4)}
    return judged_collection(tmp_path / "mine", beir_folder / "corpus.jsonl", queries, grades, "train")


def test_same_seed_gives_the_same_file_and_another_seed_another(files, tmp_path):
    texts = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        built(tmp_path / name, "qrels", **files, lists_per_query=10, seed=seed)
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    assert texts[0] == texts[1] != texts[2]


def test_skipped_lists_are_reported(requests, files, tmp_path, capsys):
    write(requests, *requests.read_text().splitlines(), request_row("8", {"d0": "Deserts are dry."}))
    write_qrels(files["qrels"], {"7": {"d1": 3, "d2": 1}, "8": {"d0": 1}})
    assert len(built(tmp_path / "out.jsonl", "qrels", **files, lists_per_query=2)) == 2
    assert "skipped lists, fewer than two passages: 2" in capsys.readouterr().out


def test_passages_that_are_left_out_or_not_judged_are_counted(requests, files, tmp_path, capsys):
    row = json.loads(requests.read_text())
    row["candidates"] += [{"docid": "blank", "doc": {"contents": " "}}, row["candidates"][0] | {"docid": "copy"}]
    write(requests, row)
    (item,) = built(tmp_path / "out.jsonl", "qrels", **files, passages="9")
    assert ids(item) == [f"d{number}" for number in range(5)]
    printed = capsys.readouterr().out
    assert "candidates left out, without a text or with that of another one: 2\n" in printed
    assert "passages in the lists that nobody judged, which count as not relevant: 3\n" in printed
    write_qrels(files["qrels"], {"7": {f"d{number}": number for number in range(5)}})
    built(tmp_path / "judged.jsonl", "qrels", **files, passages="9")
    assert "nobody judged" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("judged", "options", "message"),
    [
        ("7 0 d1 0\n", {"lists_per_query": 2}, "of 1 queries; skipped lists, all passages equally relevant: 2"),
        ("8 0 d1 1\n9 0 d1 1\n", {}, r"none of the 1 queries is judged in .*\.txt \(2 queries\); give .*'7'.*'8'"),
        ("7 0 d1 3\n", {"held_out_share": 0.5}, "leaves 0 lists to train on and 1 held out, of 1 queries"),
    ],
)
def test_source_that_gives_no_list_is_refused_and_writes_no_file(files, tmp_path, judged, options, message):
    files["qrels"].write_text(judged, encoding="utf-8")
    with pytest.raises(CollectionError, match=message):
        built(tmp_path / "out.jsonl", "qrels", **files, **options)
    assert not list(tmp_path.glob("*.jsonl"))


def test_queries_without_judgement_are_counted(requests, files, tmp_path, capsys):
    row = requests.read_text()
    requests.write_text(row + row.replace('"qid": "7"', '"qid": "8"'))
    assert len(built(tmp_path / "out.jsonl", "qrels", **files)) == 1
    assert "1 of 2 queries are judged in" in capsys.readouterr().out


def test_existing_file_is_not_replaced(files, tmp_path):
    for name in ("out.jsonl", "out-held-out.jsonl"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"{name} exists already; remove it first or choose another --out"):
            built(tmp_path / "out.jsonl", "qrels", **files, held_out_share=0.5)
        assert (tmp_path / name).read_text(encoding="utf-8") == "mine"
        (tmp_path / name).unlink()


def test_held_out_share_writes_two_files_without_a_common_query(collection, tmp_path):
    options = {"collection": str(collection), "lists_per_query": 3, "held_out_share": 0.25}
    lists = built(tmp_path / "out.jsonl", "qrels", **options)
    held_out = read_lists(tmp_path / "out-held-out.jsonl")
    assert (len(lists), len(held_out)) == (9, 3)
    queries, others = ({item.query.query_id.partition("#")[0] for item in part} for part in (lists, held_out))
    assert (len(queries), len(others), queries & others) == (3, 1, set())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either --requests or --collection"),
        ({"requests": Path("r"), "teacher": "qrels"}, "give --qrels"),
        ({"collection": "c", "qrels": Path("q")}, "--qrels is for --requests"),
        ({"requests": Path("r"), "passages": "9-5"}, "--passages 9-5: expected"),
        ({"requests": Path("r"), "depth": 10, "passages": "20"}, "lists of 20 passages need as many candidates"),
    ],
)
def test_contradicting_options_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path / "out.jsonl", **{"teacher": "fusion", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("spelled", [str, lambda flag: flag.replace("-", "_").replace("__", "--")])
def test_flags_have_two_spellings(requests, tmp_path, spelled):
    files = {"--out": tmp_path / "out", "--requests": requests, "--qrels": requests.parent / "qrels.txt"}
    flags = {**files, "--teacher": "qrels", "--lists-per-query": 2, "--passages": 3, "--order": "first-stage"}
    words = [part for flag, value in flags.items() for part in (spelled(flag), str(value))]
    result = CliRunner().invoke(build_lists.args[0], words)
    assert result.exit_code == 0, result.output
    assert [item.query.query_id for item in read_lists(tmp_path / "out")] == ["dl/7", "dl/7#2"]


# --- pools


def pools(encoder: Encoder | None, folder: Path, **settings: object) -> list[Pool]:
    common = {"out": folder / "out.jsonl", "teacher": TeacherName.QRELS, "passages": "2", "name": "n"}
    source = open_source(BuildListsSettings(**(common | settings)), encoder)  # type: ignore[arg-type]
    found = list(source.pools)
    assert len(found) == source.queries
    return found


def test_pool_of_a_request_holds_its_first_candidates_that_have_a_text(encoder, tmp_path):
    requests = write_requests(tmp_path / "requests.jsonl", {"1": {"a": "one two", "b": " ", "c": "three", "d": "four"}})
    qrels = write_qrels(tmp_path / "qrels.txt", {"1": {"c": 2}})
    for given in (None, encoder):
        (pool,) = pools(given, tmp_path, requests=requests, qrels=qrels, depth=3)
        assert [(c.doc_id, c.score) for c in pool.candidates] == [("a", 9.0), ("c", 7.0)]
        assert (pool.query.query_id, pool.grades["c"]) == ("n/1", 2.0)
        assert all((c.vector is None) == (given is None) for c in pool.candidates)


def test_pool_of_a_collection_holds_the_highest_cosines_and_the_relevant_passages(encoder, beir_folder, tmp_path):
    queries, grades = dict.fromkeys("12", "pull of the moon"), {"1": {"violin": 1, "gone": 1}}
    judged_collection(tmp_path, beir_folder / "corpus.jsonl", queries, grades)
    (whole,) = pools(encoder, tmp_path, collection=str(tmp_path), split="test", depth=50)
    cosines = [candidate.score or 0.0 for candidate in whole.candidates]
    assert cosines == sorted(cosines, reverse=True)
    vectors = np.stack([c.vector for c in whole.candidates if c.vector is not None])
    np.testing.assert_allclose(vectors @ encoder.encode_queries(["pull of the moon"])[0], cosines, atol=1e-6)
    (short,) = pools(encoder, tmp_path, collection=str(tmp_path), split="test", depth=2)
    nearest = [candidate.doc_id for candidate in whole.candidates[:2]]
    assert [candidate.doc_id for candidate in short.candidates] == [*nearest, "violin"]


def test_name_that_promises_gzip_is_refused(files, tmp_path):
    with pytest.raises(ConfigError, match=r"--out .*out\.jsonl\.gz: the file is plain text; give .*out\.jsonl, and"):
        built(tmp_path / "out.jsonl.gz", "qrels", **files)
