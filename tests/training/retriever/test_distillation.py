"""`distill-retriever`: lists mined from an index, an index encoded anew, and runs that are killed and resumed."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rerank_training.lists.sampling import Pool
from rerank_training.lists.training_list import read_lists
from rerank_training.retriever import distillation
from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.retriever.distillation import (
    distill_retriever,
    measure_dense,
    mined_lists,
    reencode,
    split_queries,
)
from rerank_training.retriever.encoder import TrainableEncoder
from rerank_training.trainer.arguments import RunArguments
from safetensors.torch import load_file

from rerank.collections import Collection, open_collection
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index, read_manifest
from rerank.types import FirstStage, Passage, Query
from rerank.util.files import sha256_of_files
from tests.conftest import PASSAGES
from tests.eval.data import judged_collection, write
from tests.small_encoder import write_small_encoder
from tests.training.small_lists import logged_losses


@pytest.fixture
def judged_queries(tmp_path: Path) -> Path:
    queries = {str(number): f"query {number}" for number in range(4)}
    for split, judged in {"odd": "13", "all": "0123", "none": "9"}.items():
        judged_collection(tmp_path, None, queries, {query_id: {"flea": 1} for query_id in judged}, split)
    return tmp_path


def by_length(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    return tuple(float(len(passage.text)) for passage in passages)


@pytest.mark.parametrize(
    ("held_out", "counts"), [("all", "0 are left to train on and 4"), ("none", "4 are left to train on and 0 have")]
)
def test_split_without_training_or_held_out_queries_is_refused(judged_queries, index_folder, held_out, counts):
    with pytest.raises(ConfigError, match=counts):
        split_queries(judged_queries, held_out, index_folder)


def test_judged_ids_have_the_form_of_queries_and_index(tmp_path, encoder):
    passages = [Passage("a%20flea", "A flea lives a year."), Passage("desert", "Deserts are dry.")]
    build_index(Collection("two", lambda: iter(passages)), tmp_path / "index", encoder)
    judged_collection(tmp_path, None, {"my%20q": "fleas", "r": "sand"}, {})
    write(tmp_path / "qrels" / "test.tsv", "my%20q 0 a%20flea 2")
    training, held_out, qrels = split_queries(tmp_path, "test", tmp_path / "index")
    assert [[query.query_id for query in part] for part in (training, held_out)] == [["r"], ["my%20q"]]
    assert qrels == [Qrel("my%20q", "a%20flea", 2)]


def test_list_has_the_passages_of_both_first_stages_once(index, encoder):
    query, depth = Query("library that searches with BM25", "1"), 3
    (mined,) = mined_lists(index, encoder, [query], depth, by_length)
    found = [index.search(stage, [query], depth)[0] for stage in (FirstStage.DENSE, FirstStage.BM25)]
    expected = list(dict.fromkeys(doc.doc_id for docs in found for doc in docs))
    assert [passage.doc_id for passage in mined.passages] == expected
    assert mined.relevance == by_length(None, mined.passages)  # type: ignore[arg-type]


def test_queries_that_find_nothing_are_named(index, encoder):
    with pytest.raises(CollectionError, match="none of 1 queries finds two passages"):
        list(mined_lists(index, encoder, [Query("moon", "1")], 1, by_length))


class Killed(Exception):
    """Acts as the end of the process."""


@pytest.fixture(scope="module")
def other(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The same model with one changed weight."""
    folder = tmp_path_factory.mktemp("encoders") / "other"
    model = TrainableEncoder(encoder, lora_rank=0)
    model.encoder[0].auto_model.embeddings.LayerNorm.bias.data[0] += 1
    model.save_pretrained(folder)
    return Encoder(str(folder), "cpu")


def kill_at_the_end(stage: str, done: int, total: int | None) -> None:
    """A progress callback that ends the encoding when all vectors are stored."""
    if done == total:
        raise Killed


def test_new_index_finds_with_the_new_vectors_names_its_encoder_and_keeps_the_rest(index_folder, other, tmp_path):
    reencode(index_folder, tmp_path / "new", other, lambda *_: None)
    opened = Index(tmp_path / "new", other)
    passages = opened.store.passages(["flea", "moon", "cello"])
    expected = other.encode_passages([passage.text for passage in passages])
    np.testing.assert_allclose(np.stack([p.vector for p in passages if p.vector is not None]), expected, atol=1e-6)
    assert opened.search(FirstStage.DENSE, [Query("string instruments")], 3)[0]
    assert opened.search(FirstStage.BM25, [Query("flea")], 1)[0][0].doc_id == "flea"
    before, after = read_manifest(index_folder), read_manifest(tmp_path / "new")
    assert after.encoder == other.id
    assert (after.collection, after.passages, after.dense) == (before.collection, before.passages, before.dense)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_killed_encoding_resumes(index_folder, other, tmp_path):
    reencode(index_folder, tmp_path / "uninterrupted", other, lambda *_: None)
    with pytest.raises(Killed):
        reencode(index_folder, tmp_path / "killed", other, kill_at_the_end)
    assert not (tmp_path / "killed").exists()
    reports: list[tuple[str, int, int | None]] = []
    reencode(index_folder, tmp_path / "killed", other, lambda *report: reports.append(report))
    assert reports == [("vectors", 12, 12)]  # which are there when the second call begins
    vectors = [np.load(tmp_path / name / "vectors.npy") for name in ("uninterrupted", "killed")]
    assert np.array_equal(*vectors)


def test_vectors_of_another_encoder_are_not_reused(index_folder, encoder, other, tmp_path):
    with pytest.raises(Killed):
        reencode(index_folder, tmp_path / "new", other, kill_at_the_end)
    reencode(index_folder, tmp_path / "new", encoder, lambda *_: None)
    vectors = [np.load(folder / "vectors.npy") for folder in (index_folder, tmp_path / "new")]
    np.testing.assert_allclose(*vectors, atol=1e-6)


#: The queries are the titles of the passages; four of them are held out.
HELD_OUT = ("flea", "moon", "lucene", "cello")
#: Functions that the steps of a round call.
STEPS = ("write_lists", "train", "reencode")


@pytest.fixture(scope="module")
def small(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    prompts = {"query": "query: ", "document": "passage: "}
    return write_small_encoder(tmp_path_factory.mktemp("encoders") / "small", encoder, prompts)


@pytest.fixture(scope="module")
def small_index(beir_folder: Path, small: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("indexes") / "twelve"
    build_index(open_collection(str(beir_folder)), out, small)
    return out


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    queries = {f"q-{doc_id}": title for doc_id, (title, _) in PASSAGES.items()}
    grades = {f"q-{doc_id}": {doc_id: 1} for doc_id in HELD_OUT}
    return judged_collection(tmp_path_factory.mktemp("queries"), None, queries, grades, "some")


def distilled(index: Path, queries: Path, out: Path, steps: int = 3, **changed: Any) -> Path:
    plain: dict[str, Any] = {"held_out": "some", "depth": 6, "list_size": 3, "lora_rank": 2}
    arguments = RetrieverArguments(index=str(index), queries=str(queries), **(plain | changed))
    given: dict[str, Any] = {"max_steps": steps, "per_device_train_batch_size": 4, "save_steps": 2, "use_cpu": True}
    flags = RetrieverRunFlags(output_dir=str(out), learning_rate=1e-3, **given)
    return distill_retriever(arguments, RunArguments(**vars(flags), logging_steps=1))


@pytest.fixture(scope="module")
def finished(small_index: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distilled(small_index, queries, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def ranked_by_a_reranker(small_index: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10 steps whose teacher is a reranker, with no query held out."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "models.yaml").write_text("models: [{name: identity, ranker: identity}]\n", encoding="utf-8")
    changed = {"teacher": "reranker", "config": str(folder / "models.yaml"), "rank_loss": "weighted-ranknet"}
    changed |= {"list_size": 6, "held_out": ""}
    return distilled(small_index, queries / "queries.jsonl", folder / "run", steps=10, **changed)


def weights(encoder: Path) -> str:
    return sha256_of_files([encoder / "model.safetensors"])


def test_result_is_an_encoder_and_an_index_that_names_it(finished):
    encoder = Encoder(str(finished / "encoder"), "cpu")
    index = Index(finished / "index", encoder)
    assert index.manifest.encoder == encoder.id
    assert encoder.prompts == ("query: ", "passage: ")
    assert index.search(FirstStage.HYBRID_RRF, [Query("flea")], 2)[0]


def test_encoder_is_trained_and_keeps_its_layout(finished, small):
    before, after = (load_file(folder / "model.safetensors") for folder in (small.folder, finished / "encoder"))
    changed = {name for name in after if not before[name].equal(after[name])}
    assert after.keys() <= before.keys()
    assert any("attention" in name for name in changed)
    assert not any("embeddings" in name for name in changed)


def test_held_out_queries_are_not_trained_on(finished):
    taught = {item.query.query_id for item in read_lists(finished / "training" / "lists.jsonl")}
    assert taught == {f"q-{doc_id}" for doc_id in PASSAGES if doc_id not in HELD_OUT}


def test_held_out_queries_are_measured_by_dense_retrieval(small_index):
    queries = [Query("how long does a flea live", "1"), Query("moon", "2")]
    qrels = [Qrel("1", "flea", 1), Qrel("2", "moon", 1), Qrel("2", "not-in-the-index", 1)]
    found = measure_dense(small_index, "cpu", queries, qrels)
    assert found.values("R@100") == [1.0, 0.5]


def test_training_lowers_the_loss(ranked_by_a_reranker):
    losses = logged_losses(ranked_by_a_reranker / "training" / "checkpoint-10")
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def test_teacher_may_be_a_reranker(ranked_by_a_reranker):
    """The identity ranker keeps the order of the candidates."""
    for item in read_lists(ranked_by_a_reranker / "training" / "lists.jsonl"):
        assert list(item.relevance) == list(range(len(item.passages), 0, -1))


def test_run_killed_at_every_step_ends_with_the_same_weights(finished, small_index, queries, tmp_path, monkeypatch):
    run = tmp_path / "run"
    calls: list[str] = []
    fatal: set[str] = set()

    def spy(step: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(step)
            if step in fatal:
                raise Killed
            return original(*given, **named)

        return call

    for step in STEPS:
        monkeypatch.setattr(distillation, step, spy(step, getattr(distillation, step)))
    for step in STEPS:
        fatal.add(step)
        with pytest.raises(Killed):
            distilled(small_index, queries, run)
        fatal.clear()
    distilled(small_index, queries, run)
    repeated = ["write_lists", "write_lists", "train", "train", "reencode", "reencode"]
    assert calls == repeated, "only the steps that were killed are repeated"
    assert weights(run / "encoder") == weights(finished / "encoder")


def test_killed_training_resumes_from_its_last_save_and_ends_with_its_result(
    finished, small_index, queries, tmp_path, capsys
):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    for path in (run / "encoder", run / "index", run / "training" / "checkpoint-3"):
        shutil.rmtree(path)
    (run / "report.json").unlink()
    distilled(small_index, queries, run)
    assert weights(run / "encoder") == weights(finished / "encoder")
    *_, measured, named, served, gain = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  nDCG@10  0\.\d{4} before, 0\.\d{4} after; p = \S+", measured)
    assert named == f"encoder and index: {run}"
    assert served == f"serve it: rerank serve --index {run}/index --encoder {run}/encoder"
    assert gain.startswith("gain: ")


def test_lists_of_one_passage_are_refused():
    with pytest.raises(ConfigError, match="use a --list-size of 2 or more"):
        RetrieverArguments(index="index", queries="queries", list_size=1)
