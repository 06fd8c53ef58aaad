"""`train-fusion`: judged lists of files and of searches, and the settings of a service."""

import random
from pathlib import Path
from typing import Any

import pytest
from rerank_training.commands import train_fusion as command
from rerank_training.fusion.arguments import FusionArguments
from rerank_training.fusion.training import WeightComparison, check_sources, read_judged_lists, train_fusion
from rerank_training.lists.training_list import TrainingList
from typer.testing import CliRunner

from rerank.collections import Collection
from rerank.config import BUNDLED_MODELS, FusionModel, ServiceConfig, load_config
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.retrieval.build import build_index
from rerank.types import FirstStageKind, Passage
from tests.conftest import PASSAGES
from tests.eval.data import request_row, write, write_qrels
from tests.training.small_lists import QUERIES

QUERY = "how long does a flea live"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "queries.tsv", f"1\t{QUERY}", "2\tnobody judged this")
    write_qrels(tmp_path / "qrels.txt", {"1": {"flea": 2, "elsewhere": 1}})
    write(tmp_path / "lists.jsonl", request_row("1", {name: PASSAGES[name][1] for name in ("violin", "flea")}, QUERY))
    return tmp_path


def only_list(encoder: Encoder, **given: Any) -> TrainingList:
    arguments = FusionArguments(out=Path("unused"), **given)
    (found,) = read_judged_lists(arguments, encoder, lambda: SparseEncoder(device="cpu"))
    return found


def test_judged_queries_are_searched(files, index_folder, encoder):
    paths = {"queries": files / "queries.tsv", "qrels": files / "qrels.txt"}
    found = only_list(encoder, index=index_folder, depth=5, **paths)
    grades = {passage.doc_id: grade for passage, grade in zip(found.passages, found.relevance, strict=True)}
    assert found.query.text == QUERY
    assert len(grades) == len(found.scores) == 5
    assert grades["flea"] == 2.0
    assert set(grades.values()) == {0.0, 2.0}
    assert all(passage.vector is not None for passage in found.passages)


def test_queries_without_judgements_are_refused(files, index_folder, encoder):
    (files / "qrels.txt").write_text("7 0 flea 2\n")
    with pytest.raises(CollectionError, match="none of the 2 queries is judged"):
        only_list(encoder, index=index_folder, queries=files / "queries.tsv", qrels=files / "qrels.txt")


def test_judgements_grade_the_lists_of_a_file(files, encoder):
    found = only_list(encoder, lists=files / "lists.jsonl", qrels=files / "qrels.txt")
    assert found.relevance == (0.0, 2.0)


def test_judged_ids_have_the_form_of_the_lists(files, encoder):
    lists = files / "lists.jsonl"
    lists.write_text(lists.read_text().replace('"flea"', '"a%20flea"').replace('"1"', '"my%20q"'))
    (files / "qrels.txt").write_text("my%20q 0 a%20flea 2\n")
    assert only_list(encoder, lists=lists, qrels=files / "qrels.txt").relevance == (0.0, 2.0)


def test_judged_ids_have_the_form_of_the_index(tmp_path, encoder):
    passages = [Passage("a%20flea", "A flea lives a year."), Passage("desert", "Deserts are dry.")]
    build_index(Collection("two", lambda: iter(passages)), tmp_path / "index", encoder)
    (tmp_path / "queries.tsv").write_text(f"my%20q\t{QUERY}\n")
    (tmp_path / "qrels.txt").write_text("my%20q 0 a%20flea 2\n")
    paths = {"queries": tmp_path / "queries.tsv", "qrels": tmp_path / "qrels.txt"}
    found = only_list(encoder, index=tmp_path / "index", depth=2, **paths)
    assert dict(zip([passage.doc_id for passage in found.passages], found.relevance, strict=True))["a%20flea"] == 2.0


def test_weight_of_the_service_is_auto_unless_it_is_given():
    assert FusionArguments(out=Path("unused")).default_weight is FirstStageKind.AUTO
    assert FusionArguments(out=Path("unused"), first_stage_weight="neural").default_weight is FirstStageKind.NEURAL
    assert FusionArguments(out=Path("unused"), first_stage_weight="0.5").default_weight == 0.5


#: What neither the encoder nor the sparse encoder knows: passages about animals and music are relevant.
RELEVANT = {"flea", "flea-bite", "violin", "cello"}


def write_requests(folder: Path, known: bool) -> Path:
    """Requests of 24 queries and their judgements.

    Args:
        known: the first stage knows what is relevant; otherwise its order and the relevance are random.
    """
    draw = random.Random(1)
    rows, grades = [], {}
    for number in range(24):
        grades[str(number)] = dict.fromkeys(sorted(RELEVANT if known else draw.sample(sorted(PASSAGES), 4)), 1)
        order = draw.sample(sorted(PASSAGES), len(PASSAGES))
        if known:
            order.sort(key=lambda name: name not in RELEVANT)
        texts = {name: PASSAGES[name][1] for name in order}
        rows.append(request_row(str(number), texts, f"{QUERIES[number % len(QUERIES)]} {number}"))
    write(folder / "requests.jsonl", *rows)
    write_qrels(folder / "qrels.txt", grades)
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_requests(tmp_path_factory.mktemp("inputs"), known=True)


def arguments(folder: Path, **changed: Any) -> FusionArguments:
    plain: dict[str, Any] = {"lists": folder / "requests.jsonl", "qrels": folder / "qrels.txt", "cosine_depth": 0}
    return FusionArguments(**({"out": folder / "service.yaml"} | plain | changed))


def default_of(service: ServiceConfig) -> FusionModel:
    model: Any = service.models[0]
    assert model.name == "default"
    return model


@pytest.fixture(scope="module")
def verdict(inputs: Path, encoder: Encoder, sparse_encoder: SparseEncoder) -> WeightComparison:
    """With encoders that are loaded under other names."""
    return train_fusion(arguments(inputs, encoder="mine", sparse_encoder="my-splade"), encoder, sparse_encoder)


def test_weights_that_gain_are_served_with_their_encoders(verdict, inputs):
    assert verdict.gain.p < 0.05
    assert verdict.gain.interval[0] > 0
    assert verdict.served == verdict.chosen
    assert isinstance(verdict.chosen.first_stage, float)
    service = load_config(inputs / "service.yaml")
    assert (service.encoder.name, service.sparse_encoder) == ("mine", "my-splade")
    model = default_of(service)
    assert (model.first_stage_weight, model.sparse_weight) == (verdict.chosen.first_stage, verdict.chosen.sparse)
    assert model.cosine_depth == 0
    assert service.models[1:] == BUNDLED_MODELS[1:]


def test_first_stage_is_compared_with_the_default(verdict):
    assert verdict.first_stage.mean == pytest.approx(1.0)
    assert verdict.first_stage.queries == verdict.gain.queries == 24
    assert verdict.first_stage.reference == verdict.gain.reference < 0.95


def test_gain_that_is_not_significant_leaves_the_default(encoder, sparse_encoder, tmp_path, capsys):
    """Lists without a relevant passage are left out."""
    folder = write_requests(tmp_path, known=False)
    judged = [line for line in (folder / "qrels.txt").read_text().splitlines() if not line.startswith("3 ")]
    (folder / "qrels.txt").write_text("\n".join([*judged, "3 0 other 1"]))
    given = arguments(folder, cosine_depth=30, first_stage_weight="0.7")
    found = train_fusion(given, encoder, sparse_encoder)
    assert found.gain.queries == 23
    assert found.served == found.default
    model = default_of(load_config(folder / "service.yaml"))
    assert {model.weight_for(kind) for kind in FirstStageKind} == {0.7}
    printed = capsys.readouterr().out
    assert printed.endswith("\nThe gain is not significant: the weights of the default stay.\n")
    assert "serve the model identity" not in printed
    assert printed.splitlines()[-2].endswith(f"rerank serve --config {folder / 'service.yaml'}")


@pytest.mark.parametrize("kind", ["auto", "neural"])
def test_default_weights_are_found_by_the_list(encoder, sparse_encoder, tmp_path, kind):
    folder = write_requests(tmp_path, known=False)
    found = train_fusion(arguments(folder, first_stage_weight=kind), encoder, sparse_encoder)
    assert str(found.served) == f"first_stage_weight {kind}, sparse_weight 0.5"
    service = load_config(folder / "service.yaml")
    assert (service.first_stage_weight, default_of(service).first_stage_weight) == (FirstStageKind(kind), None)


def test_existing_settings_are_not_replaced(inputs, tmp_path):
    (tmp_path / "service.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"service\.yaml exists already; remove it first or choose another --out"):
        train_fusion(arguments(inputs, out=tmp_path / "service.yaml"))
    assert (tmp_path / "service.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("lists", "judged", "message"),
    [
        (24, "other", "in none of the 24 lists of .*requests.jsonl is a passage more relevant than another; check"),
        (1, "flea", "1 judged lists have passages of different grades; at least 20"),
    ],
)
def test_lists_that_measure_nothing_or_too_few_are_refused(inputs, tmp_path, encoder, lists, judged, message):
    rows = (inputs / "requests.jsonl").read_text().splitlines()[:lists]
    (tmp_path / "requests.jsonl").write_text("\n".join(rows))
    (tmp_path / "qrels.txt").write_text("".join(f"{number} 0 {judged} 1\n" for number in range(24)))
    with pytest.raises(CollectionError, match=message):
        train_fusion(arguments(tmp_path), encoder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "lists come from one of --lists, --index, but none of them is given"),
        ({"lists": "l", "index": "i"}, "lists come from one of --lists, --index, but --lists and --index are given"),
        ({"lists": "l", "qrels": "q", "collection": "c"}, "judgements come from one of .* --qrels and --collection"),
        ({"index": "i"}, "judgements come from one of --qrels, --collection, but none of them is given"),
        ({"index": "i", "qrels": "q"}, "texts of queries come from one of --queries, --collection, but none"),
    ],
)
def test_sources_that_are_missing_or_contradict_each_other_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        check_sources(FusionArguments(out=Path("unused"), **given))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cosine-depth", "1"], "--cosine-depth 1 ranks nothing; use 2 or more, or 0 for all passages"),
        (["--depth", "1"], "Invalid value for '--depth': should be greater than or equal to 2"),
        (["--clicks", "c"], "No such option: --clicks"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(flags, message):
    called = CliRunner(env={"COLUMNS": "200"}).invoke(command.args[0], ["--out", "unused", *flags])
    assert called.exit_code
    assert message in called.output + str(called.exception)
