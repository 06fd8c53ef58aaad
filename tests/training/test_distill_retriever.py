"""`distill-retriever` from its arguments to an encoder and an index that are served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rerank_training import distill_retriever as command
from rerank_training.data import TrainingList, read_lists
from rerank_training.distill_retriever import RetrieverArguments, RetrieverRunArguments, distill_retriever
from safetensors.torch import load_file

from rerank.errors import ConfigError
from rerank.files import sha256_of_files
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index, read_manifest
from rerank.types import FirstStage, Query
from tests.conftest import PASSAGES

#: The titles ask for their passages; four of them are held out.
HELD_OUT = ("flea", "moon", "lucene", "cello")


class Killed(Exception):
    """Stands for the end of the process."""


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
    plain: dict[str, Any] = {"held_out": "some", "depth": 6, "list_size": 3, "lora_rank": 2, "text_tokens": 16}
    arguments = RetrieverArguments(index=str(index), queries=str(queries), **(plain | changed))
    settings = RetrieverRunArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-3, save_steps=2,
        logging_steps=1, use_cpu=True, report_to=["none"],
    )  # fmt: skip
    return distill_retriever(arguments, settings)


@pytest.fixture(scope="module")
def finished(index_folder: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds."""
    return distilled(index_folder, queries, tmp_path_factory.mktemp("runs") / "run", rounds=2)


def weights(encoder: Path) -> str:
    return sha256_of_files([encoder / "model.safetensors"])


def graded(item: TrainingList) -> dict[str, float]:
    return {passage.doc_id: grade for passage, grade in zip(item.passages, item.relevance, strict=True)}


def losses(work: Path, step: int) -> list[float]:
    state = json.loads((work / f"checkpoint-{step}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def test_result_is_an_encoder_and_an_index_that_names_it(finished: Path) -> None:
    encoder = Encoder(str(finished / "encoder"), "cpu")
    index = Index(finished / "index", encoder)
    assert index.manifest.encoder == encoder.id
    assert index.retrievers[FirstStage.HYBRID_RRF].search([Query("flea")], 2)[0]


def test_encoder_has_learnt_and_has_the_shape_that_it_had(finished: Path, encoder: Encoder) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (encoder.folder, finished / "encoder"))
    changed = {name for name in after if not before[name].equal(after[name])}
    assert after.keys() <= before.keys()
    assert any("attention" in name for name in changed)
    assert not any("embeddings" in name for name in changed)


def test_each_round_goes_on_from_the_one_before(finished: Path, encoder: Encoder) -> None:
    shas = [encoder.id.sha256, *(weights(finished / part / "encoder") for part in ("round-1", ""))]
    assert len(set(shas)) == 3
    assert read_manifest(finished / "round-1" / "index").encoder.sha256 == shas[1]


def test_held_out_queries_are_in_no_list(finished: Path) -> None:
    for number in (1, 2):
        taught = {item.query.query_id for item in read_lists(finished / f"round-{number}" / "lists.jsonl")}
        assert taught == {f"q-{doc_id}" for doc_id in PASSAGES if doc_id not in HELD_OUT}


def test_teacher_does_not_follow_its_student(finished: Path) -> None:
    """Where both rounds find the same passages, they are graded the same."""
    first, second = (
        {item.query.query_id: item for item in read_lists(finished / f"round-{number}" / "lists.jsonl")}
        for number in (1, 2)
    )
    grades = [(graded(first[query_id]), graded(second[query_id])) for query_id in first]
    found_the_same = [pair for pair in grades if pair[0].keys() == pair[1].keys()]
    assert found_the_same
    for before, after in found_the_same:
        assert after == pytest.approx(before, abs=1e-4)


def test_report_says_what_was_done_and_what_it_gave(finished: Path, encoder: Encoder) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert report["base"]["sha256"] == encoder.id.sha256
    assert report["encoder"]["sha256"] == weights(finished / "encoder")
    assert report["training_queries"] == len(PASSAGES) - len(HELD_OUT)
    assert report["data"].keys() == {"queries.jsonl", "some.tsv", "passages.sqlite"}
    assert report["held_out"]["changes"].keys() == {"R@100", "nDCG@10"}
    assert report["held_out"]["after"]["R@100"] == dict.fromkeys((f"q-{doc_id}" for doc_id in HELD_OUT), 1.0)


def test_training_lowers_the_loss(index_folder: Path, queries: Path, tmp_path: Path) -> None:
    distilled(index_folder, queries, tmp_path / "run", steps=30, list_size=6, held_out="")
    history = losses(tmp_path / "run" / "round-1", 30)
    assert sum(history[-5:]) < 0.8 * sum(history[:5])


def test_nothing_is_measured_where_nothing_is_held_out(index_folder: Path, queries: Path, tmp_path: Path) -> None:
    report = json.loads((distilled(index_folder, queries, tmp_path / "run", held_out="") / "report.json").read_text())
    assert "held_out" not in report
    assert report["training_queries"] == len(PASSAGES)


@pytest.mark.parametrize("step", ["write_lists", "train", "reencode"])
def test_killed_run_goes_on_and_ends_with_the_same_weights(
    finished: Path, index_folder: Path, queries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Killed in the second round, at each of its steps."""
    calls = []
    original = getattr(command, step)

    def killed_at_the_second_call(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise Killed
        return original(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(command, step, killed_at_the_second_call)
        with pytest.raises(Killed):
            distilled(index_folder, queries, tmp_path / "run", rounds=2)
    first_round = weights(tmp_path / "run" / "round-1" / "encoder")
    run = distilled(index_folder, queries, tmp_path / "run", rounds=2)
    assert first_round == weights(finished / "round-1" / "encoder")
    assert weights(run / "encoder") == weights(finished / "encoder")


def test_killed_training_goes_on_from_its_last_save(
    finished: Path, index_folder: Path, queries: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    for path in (run / "encoder", run / "index", run / "round-2" / "checkpoint-3"):
        shutil.rmtree(path)
    (run / "report.json").unlink()
    distilled(index_folder, queries, run, rounds=2)
    assert weights(run / "encoder") == weights(finished / "encoder")


def test_finished_run_is_not_overwritten(finished: Path, index_folder: Path, queries: Path) -> None:
    with pytest.raises(ConfigError, match="that run is finished"):
        distilled(index_folder, queries, finished, rounds=2)


def test_run_does_not_go_on_with_other_arguments(
    finished: Path, index_folder: Path, queries: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "report.json").unlink()
    with pytest.raises(ConfigError, match=r"another depth \(depth: 6, now 7\)"):
        distilled(index_folder, queries, run, rounds=2, depth=7)


def test_a_rerankers_order_teaches(index_folder: Path, queries: Path, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("models: [{name: identity, ranker: identity}]\n", encoding="utf-8")
    changed = {"teacher": "reranker", "config": str(tmp_path / "models.yaml"), "rank_loss": "weighted-ranknet"}
    run = distilled(index_folder, queries, tmp_path / "run", steps=1, in_batch_weight=0.5, **changed)
    assert (run / "report.json").is_file()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rank_loss": "hinge"}, "'hinge' is none of"),
        ({"teacher": "reranker", "rank_loss": "kl"}, "kl reads how far apart scores are; use --rank_loss ranknet"),
        ({"rounds": 0}, "0 rounds train nothing"),
        ({"list_size": 1}, "use 2 <= smallest"),
    ],
)
def test_arguments_that_contradict_each_other_are_named(
    index_folder: Path, queries: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        distilled(index_folder, queries, tmp_path / "run", **changed)
