"""`train-fusion` from its arguments to a folder that is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rerank_training.fusion.arguments import FusionArguments
from rerank_training.fusion.judged_lists import check_sources
from rerank_training.fusion.training import train_fusion
from rerank_training.fusion.verdict import Verdict
from rerank_training.trainer.arguments import RunArguments

from rerank.checkpoints.manifest import read_manifest, served_model
from rerank.config import FusionModel, load_config
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import rank_windows
from rerank.reranking.load_models import load_ranker
from rerank.types import FirstStageKind, Passage, Query, Window
from tests.conftest import PASSAGES
from tests.training.pe_rank.pe_lists import QUERIES

pytestmark = pytest.mark.slow

#: What the first stage, the encoder and the sparse encoder do not know: passages about animals and music are relevant.
RELEVANT = {"flea", "flea-bite", "violin", "cello"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests of 24 queries, each with all passages in another order, and their judgements."""
    folder = tmp_path_factory.mktemp("inputs")
    names = sorted(PASSAGES)
    with (folder / "requests.jsonl").open("w") as requests, (folder / "qrels.txt").open("w") as qrels:
        for number in range(24):
            order = names[number % len(names) :] + names[: number % len(names)]
            candidates = [
                {"docid": name, "score": float(-rank), "doc": {"text": PASSAGES[name][1]}}
                for rank, name in enumerate(order)
            ]
            query = {"qid": str(number), "text": f"{QUERIES[number % len(QUERIES)]} {number}"}
            requests.write(json.dumps({"query": query, "candidates": candidates}) + "\n")
            qrels.writelines(f"{number} 0 {name} 1\n" for name in sorted(RELEVANT))
    return folder


def arguments(inputs: Path, **changed: Any) -> FusionArguments:
    plain: dict[str, Any] = {"cosine_depth": 0, "correction_lists": 0}
    plain |= {"lists": str(inputs / "requests.jsonl"), "qrels": str(inputs / "qrels.txt")}
    return FusionArguments(**(plain | changed))


def settings(out: Path, **changed: Any) -> RunArguments:
    plain: dict[str, Any] = {"max_steps": 40, "per_device_train_batch_size": 8, "save_steps": 20, "warmup_steps": 0}
    plain |= {"learning_rate": 2e-2, "use_cpu": True}
    return RunArguments(output_dir=str(out), **(plain | changed))


@pytest.fixture(scope="module")
def verdict(
    inputs: Path, encoder: Encoder, sparse_encoder: SparseEncoder, tmp_path_factory: pytest.TempPathFactory
) -> Verdict:
    run = tmp_path_factory.mktemp("runs") / "run"
    return train_fusion(arguments(inputs), settings(run), encoder, sparse_encoder)


@pytest.fixture(scope="module")
def trained(verdict: Verdict) -> Path:
    assert verdict.folder is not None
    return verdict.folder


def test_result_is_served_and_ranks_by_what_was_judged(trained: Path, encoder: Encoder) -> None:
    model = load_config(None, [served_model(f"mine={trained}")]).models[0]
    assert isinstance(model, FusionModel)
    ranker = load_ranker(model, encoder, "cpu")
    assert ranker.info.model_id.endswith(" + run")
    passages = [Passage(name, text) for name, (_, text) in PASSAGES.items()]
    ready = ranker.prepare(Query("what makes bread rise"), passages)
    (ranking,) = rank_windows(ranker, [Window(ready.query, ready.passages)])
    assert {passages[place].doc_id for place in ranking.permutation[:4]} == RELEVANT


def test_manifest_describes_the_training(trained: Path, encoder: Encoder) -> None:
    manifest = read_manifest(trained)
    assert manifest is not None
    assert (manifest.ranker, manifest.base, manifest.window_size) == ("fusion", encoder.id.name, len(PASSAGES))
    assert manifest.template_sha256 == ""
    assert manifest.data.keys() == {"requests.jsonl", "qrels.txt"}
    assert manifest.metrics["nDCG@10"] > 0.9


def test_correction_that_gains_is_proposed_with_its_command(verdict: Verdict, trained: Path) -> None:
    assert verdict.lines(trained.parent)[-1] == f"serve the correction: rerank serve --model default={trained}"


@pytest.fixture(scope="module")
def idle(
    inputs: Path, encoder: Encoder, sparse_encoder: SparseEncoder, tmp_path_factory: pytest.TempPathFactory
) -> Verdict:
    """Of a training that learns nothing, with held-out lists; one query has no relevant passage."""
    folder = tmp_path_factory.mktemp("idle")
    judged = [line for line in (inputs / "qrels.txt").read_text().splitlines() if not line.startswith("3 ")]
    (folder / "qrels.txt").write_text("\n".join([*judged, "3 0 other 1"]))
    given = arguments(inputs, qrels=str(folder / "qrels.txt"), eval_lists=str(inputs / "requests.jsonl"))
    return train_fusion(given, settings(folder / "run", max_steps=1, learning_rate=0.0), encoder, sparse_encoder)


def test_correction_that_gains_nothing_is_not_proposed(idle: Verdict) -> None:
    assert idle.correction is not None
    assert (idle.correction.difference, idle.correction.p) == (0.0, 1.0)
    assert idle.to_serve != "correction"


def test_lists_without_a_relevant_passage_are_left_out(idle: Verdict) -> None:
    assert idle.correction is not None
    assert (idle.correction.queries, idle.first_stage.queries) == (23, 23 + 23)


def test_few_lists_find_weights_and_train_no_correction(
    inputs: Path, encoder: Encoder, sparse_encoder: SparseEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(inputs, correction_lists=300)
    verdict = train_fusion(given, settings(tmp_path / "run"), encoder, sparse_encoder)
    assert (verdict.correction, verdict.folder) == (None, None)
    assert "no correction is trained: " in capsys.readouterr().out
    model = load_config(tmp_path / "run" / "service.yaml").models[0]
    assert isinstance(model, FusionModel)
    assert (model.name, model.weight_for(FirstStageKind.LEXICAL)) == ("default", verdict.chosen.first_stage)
    assert model.sparse_weight == verdict.chosen.sparse


@pytest.mark.parametrize("flag", ["neftune_noise_alpha", "gradient_checkpointing"])
def test_flags_for_transformers_are_refused(inputs: Path, tmp_path: Path, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"not a transformer; leave --{flag.replace('_', '-')} out"):
        train_fusion(arguments(inputs), settings(tmp_path / "run", **{flag: 1}))


def test_judgements_of_other_documents_are_refused(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("".join(f"{number} 0 other 1\n" for number in range(24)))
    with pytest.raises(CollectionError, match="in none of the 24 lists is a passage more relevant than another; check"):
        train_fusion(arguments(inputs, qrels=str(tmp_path / "qrels.txt")), settings(tmp_path / "run"))


def test_too_few_lists_are_refused_with_the_number_that_is_needed(inputs: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.jsonl"
    one.write_text((inputs / "requests.jsonl").read_text().splitlines()[0] + "\n")
    with pytest.raises(CollectionError, match="1 judged lists have passages of different grades; at least 20"):
        train_fusion(arguments(inputs, lists=str(one)), settings(tmp_path / "run"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "lists come from one of --lists, --index, but none of them is given"),
        ({"lists": "l", "index": "i"}, "lists come from one of --lists, --index, but --lists and --index are given"),
        ({"lists": "l", "qrels": "q", "clicks": "c"}, "judgements come from one of .* --qrels and --clicks are given"),
        ({"index": "i"}, "judgements come from one of --qrels, --clicks, --collection, but none of them is given"),
        ({"index": "i", "qrels": "q"}, "texts of queries come from one of --queries, --collection, but none"),
        ({"index": "i", "clicks": "c", "eval_lists": "e"}, "--eval-lists are beside --lists"),
    ],
)
def test_sources_that_are_missing_or_contradict_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_sources(FusionArguments(**given))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"held_out_share": 0.95}, r"--held-out-share 0\.95 is out of range; use 0 to 0\.9"),
        ({"cosine_depth": 1}, "--cosine-depth 1 ranks nothing; use 2 or more, or 0 for all passages"),
        ({"depth": 1}, "--depth 1 is out of range; use 2 to 1000"),
    ],
)
def test_numbers_out_of_range_are_refused(inputs: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments(inputs, **changed)
