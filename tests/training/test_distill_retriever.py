"""`distill-retriever` from its arguments to an encoder and an index that are served."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rerank_training.lists.training_list import read_lists
from rerank_training.retriever import distillation
from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.retriever.distillation import distill_retriever, measure_dense
from rerank_training.trainer.arguments import RunArguments
from safetensors.torch import load_file

from rerank.collections import open_collection
from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Query
from rerank.util.files import sha256_of_files
from tests.conftest import PASSAGES
from tests.small_encoder import write_small_encoder

pytestmark = pytest.mark.slow

#: The queries are the titles of the passages; four of them are held out.
HELD_OUT = ("flea", "moon", "lucene", "cello")
#: Functions that the steps of a round call.
STEPS = ("write_lists", "train", "reencode")


class Killed(Exception):
    """Acts as the end of the process."""


@pytest.fixture(scope="module")
def small(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    prompts = {"query": "query: ", "document": "passage: "}
    return write_small_encoder(tmp_path_factory.mktemp("encoders") / "small", encoder, prompts)


@pytest.fixture(scope="module")
def index_folder(beir_folder: Path, small: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("indexes") / "twelve"
    build_index(open_collection(str(beir_folder)), out, small)
    return out


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("queries")
    rows = [{"_id": f"q-{doc_id}", "text": title} for doc_id, (title, _) in PASSAGES.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "qrels").mkdir()
    judged = "".join(f"q-{doc_id}\t{doc_id}\t1\n" for doc_id in HELD_OUT)
    (folder / "qrels" / "some.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
    return folder


def distilled(index: Path, queries: Path, out: Path, steps: int = 3, **changed: Any) -> Path:
    plain: dict[str, Any] = {"held_out": "some", "depth": 6, "list_size": 3, "lora_rank": 2}
    arguments = RetrieverArguments(index=str(index), queries=str(queries), **(plain | changed))
    flags = RetrieverRunFlags(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-3, save_steps=2,
        use_cpu=True,
    )  # fmt: skip
    return distill_retriever(arguments, RunArguments(**vars(flags), logging_steps=1))


@pytest.fixture(scope="module")
def finished(index_folder: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distilled(index_folder, queries, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def ranked_by_a_reranker(index_folder: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10 steps whose teacher is a reranker, with no query held out."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "models.yaml").write_text("models: [{name: identity, ranker: identity}]\n", encoding="utf-8")
    changed = {"teacher": "reranker", "config": str(folder / "models.yaml"), "rank_loss": "weighted-ranknet"}
    changed |= {"list_size": 6, "held_out": ""}
    return distilled(index_folder, queries / "queries.jsonl", folder / "run", steps=10, **changed)


def weights(encoder: Path) -> str:
    return sha256_of_files([encoder / "model.safetensors"])


def losses(work: Path, step: int) -> list[float]:
    state = json.loads((work / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def test_result_is_an_encoder_and_an_index_that_names_it(finished: Path) -> None:
    encoder = Encoder(str(finished / "encoder"), "cpu")
    index = Index(finished / "index", encoder)
    assert index.manifest.encoder == encoder.id
    assert encoder.prompts == ("query: ", "passage: ")
    assert index.search(FirstStage.HYBRID_RRF, [Query("flea")], 2)[0]


def test_encoder_is_trained_and_keeps_its_layout(finished: Path, small: Encoder) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (small.folder, finished / "encoder"))
    changed = {name for name in after if not before[name].equal(after[name])}
    assert after.keys() <= before.keys()
    assert any("attention" in name for name in changed)
    assert not any("embeddings" in name for name in changed)


def test_held_out_queries_are_not_trained_on(finished: Path) -> None:
    taught = {item.query.query_id for item in read_lists(finished / "training" / "lists.jsonl")}
    assert taught == {f"q-{doc_id}" for doc_id in PASSAGES if doc_id not in HELD_OUT}


def test_held_out_queries_are_measured_by_dense_retrieval(index_folder: Path) -> None:
    queries = [Query("how long does a flea live", "1"), Query("moon", "2")]
    qrels = [Qrel("1", "flea", 1), Qrel("2", "moon", 1), Qrel("2", "not-in-the-index", 1)]
    found = measure_dense(index_folder, "cpu", queries, qrels)
    assert found.values("R@100") == [1.0, 0.5]


def test_training_lowers_the_loss(ranked_by_a_reranker: Path) -> None:
    history = losses(ranked_by_a_reranker / "training", 10)
    assert sum(history[-3:]) < 0.9 * sum(history[:3])


def test_teacher_may_be_a_reranker(ranked_by_a_reranker: Path) -> None:
    """The identity ranker keeps the order of the candidates."""
    for item in read_lists(ranked_by_a_reranker / "training" / "lists.jsonl"):
        assert list(item.relevance) == list(range(len(item.passages), 0, -1))


def test_run_killed_at_every_step_ends_with_the_same_weights(
    finished: Path, index_folder: Path, queries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            distilled(index_folder, queries, run)
        fatal.clear()
    distilled(index_folder, queries, run)
    repeated = ["write_lists", "write_lists", "train", "train", "reencode", "reencode"]
    assert calls == repeated, "only the steps that were killed are repeated"
    assert weights(run / "encoder") == weights(finished / "encoder")


def test_killed_training_resumes_from_its_last_save_and_ends_with_its_result(
    finished: Path, index_folder: Path, queries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    for path in (run / "encoder", run / "index", run / "training" / "checkpoint-3"):
        shutil.rmtree(path)
    (run / "report.json").unlink()
    distilled(index_folder, queries, run)
    assert weights(run / "encoder") == weights(finished / "encoder")
    *_, measured, named, served = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  nDCG@10  0\.\d{4} before, 0\.\d{4} after; p = \S+", measured)
    assert named == f"encoder and index: {run}"
    assert served == f"serve it: rerank serve --index {run}/index --encoder {run}/encoder"


def test_lists_of_one_passage_are_refused() -> None:
    with pytest.raises(ConfigError, match="use a --list-size of 2 or more"):
        RetrieverArguments(index="index", queries="queries", list_size=1)
