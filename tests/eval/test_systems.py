"""Systems under evaluation: models of a service, and baselines of its encoder."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from rerank_eval.settings import BASELINES, EvaluationSettings
from rerank_eval.systems import _system, _unreported, open_systems, parse_systems, service_config, without_precision

from rerank.checkpoints import bundled
from rerank.client import RerankClient
from rerank.config import ServiceConfig, load_config
from rerank.config.models import needs_sparse
from rerank.errors import ConfigError
from rerank.rankers.fusion import FusionRanker
from rerank.retrieval.hybrid import z_scores
from rerank.types import FirstStage, FirstStageKind, Passage, Query
from rerank.v1 import rerank_pb2 as pb
from tests.eval.data import write
from tests.fakes import ranking_of

CASCADE = {"name": "it", "ranker": "first", "strategy": "cascade", "preranker": "pe-rank", "window_size": 15}


def flags(**given: Any) -> EvaluationSettings:
    return EvaluationSettings(out=Path("out"), **given)


def config_of(*models: str, index: Path | None = None, **given: Any) -> ServiceConfig:
    return service_config(parse_systems(models), flags(model=list(models), **given), index)


def file_with(folder: Path, *models: dict[str, object]) -> Path:
    return write(folder / "service.yaml", yaml.safe_dump({"models": list(models), "http": "127.0.0.1:0"}))


@pytest.mark.parametrize(
    ("models", "names"),
    [
        ((), ["default"]),
        (("default", "pe-rank"), ["default", "pe-rank"]),
        (("keep=identity",), ["keep"]),
        (("pe-rank-first",), ["pe-rank-first", "pe-rank"]),
        (("cosine", "z=z-score"), ["cosine", "z"]),
        ((f"mine=first:{bundled.FIRST}", f"same={bundled.FIRST}"), ["mine", "same"]),
    ],
)
def test_service_has_the_models_of_the_systems_and_their_prerankers(models, names):
    assert [model.name for model in config_of(*models).models] == names


def test_models_and_cascades_come_from_a_file(tmp_path):
    file = file_with(tmp_path, CASCADE, {"name": "pe-rank", "ranker": "pe-rank", "window_size": 50})
    config = config_of("it", config=file)
    assert [(model.name, model.window_size) for model in config.models] == [("it", 15), ("pe-rank", 50)]
    assert config.http is None
    assert config_of(config=file).models[0].preranker == "pe-rank"  # without --model, the first one of the file


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        (["perank"], "--model perank: there is no such model; did you mean pe-rank?"),
        (["first:x"], "the name 'first:x' cannot name a folder"),
        (["a=identity", "a=pe-rank"], "--model a, a: two have the same name"),
        (["../a=identity"], "cannot name a folder"),
        (["a="], "--model a: there is no such model"),
        ([f"a=first:{bundled.PE_RANK}"], "is a checkpoint of pe-rank, not of first"),
    ],
)
def test_model_that_cannot_be_evaluated_is_refused(models, problem):
    with pytest.raises(ConfigError) as caught:
        config_of(*models)
    assert problem in str(caught.value)


def test_model_that_the_target_lacks_is_refused(service):
    with (
        pytest.raises(ConfigError, match="the service has no model 'first'; it has "),
        open_systems(parse_systems(["mine=first"]), flags(target=service.address)),
    ):
        pass


@pytest.mark.parametrize(("name", "weight"), [("cosine", 0.0), ("z-score", 0.3)])
def test_baseline_is_the_sum_of_z_scores_of_its_name(name, weight, encoder):
    texts = ["A flea lives a year.", "Deserts are dry.", "Cats have fleas.", "Whales live in the sea."]
    model = load_config(None, models=[{"name": name, **BASELINES[name]}]).models[0]
    ranking = FusionRanker(model, encoder, None)
    query, first_stage = "how long does a flea live", (10.0, 9.0, 8.0, 7.0)
    of_first_stage = model.weight_for(FirstStageKind.AUTO)
    ranked = ranking_of(ranking, query, texts, first_stage=first_stage, weight=of_first_stage)
    cosines = encoder.encode_passages(texts, "auto") @ encoder.encode_queries([query])[0]
    expected = weight * z_scores(first_stage) + z_scores(cosines)
    assert ranked.scores == pytest.approx(expected.tolist(), abs=1e-4)
    assert not needs_sparse(model)


@pytest.mark.parametrize(("model", "weight"), [("number", 0.7), ("cosine", None), ("z-score", None)])
def test_weight_of_the_first_stage_is_sent_to_all_but_baselines(model, weight):
    client: Any = None
    found = _system("s", client, pb.Model(name="s"), model, flags(first_stage_weight=0.7), {}, None)
    assert found.options["first_stage_weight"] == found.fingerprint["first_stage_weight"] == weight
    assert found.fingerprint["versions"].keys() >= {"python", "rerank", "torch"}  # type: ignore[attr-defined]


def test_slow_models_are_given_time(service, monkeypatch):
    timeouts_s: list[float] = []
    call = RerankClient._call

    def recorded(self: RerankClient, method: Any, request: Any, timeout_s: float) -> Any:
        timeouts_s.append(timeout_s)
        return call(self, method, request, timeout_s)

    with open_systems(parse_systems(["default"]), flags(target=service.address)) as systems:
        monkeypatch.setattr(RerankClient, "_call", recorded)
        (system,) = systems
        system.rerank(Query("q"), [Passage("a", "1"), Passage("b", "2")])
        system.search(Query("q"), first_stage=FirstStage.BM25, depth=2)
    assert min(timeouts_s) >= 3600


def test_precision_is_that_of_every_model_that_has_one_and_others_are_named(tmp_path):
    file = file_with(tmp_path, {"name": "ce", "ranker": "cross-encoder", "path": str(tmp_path)})
    config = config_of("default", "pe-rank", "ce", "identity", config=file, precision="float32")
    precisions = {model.name: getattr(model, "precision", None) for model in config.models}
    assert precisions == {"default": None, "pe-rank": "float32", "ce": "float32", "identity": None}
    assert without_precision(config) == ["default"]


def test_fingerprint_of_a_started_service_holds_the_settings_of_its_models():
    """A folder of the cosine's results is not resumed for the z-score, nor one of another precision."""
    given = (("a=cosine", None), ("a=z-score", None), ("a=pe-rank-first", None), ("a=pe-rank-first", "float32"))
    found = [_unreported("a", config_of(model, precision=precision)) for model, precision in given]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])
    assert [model["name"] for model in found[-1]["models"]] == ["a", "pe-rank"]  # type: ignore[index, attr-defined]
