"""Profiles of published models: every one is a valid configuration, and its facts reach the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter
from rerank_eval.settings import EvaluationSettings
from rerank_eval.specs import parse_systems
from rerank_eval.systems import model_config

from rerank import profiles
from rerank.config import ModelConfig, load_config
from rerank.errors import CheckpointError, ConfigError
from rerank.manifest import served_model
from rerank.models.encoder import Encoder
from rerank.rankers.first import FirstRanker
from rerank.registry import load_models
from rerank.types import Passage, Query
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

pytest.importorskip("ftfy")


@pytest.mark.parametrize("name", profiles.names())
def test_profile_is_a_valid_configuration(name: str, tmp_path: Path) -> None:
    model = load_config(None, [served_model(f"it={name}:{tmp_path}")]).models[0]
    profile = profiles.load_profile(name)
    assert (model.profile, model.ranker, model.stride) == (name, profile.ranker, profile.stride)  # type: ignore[union-attr]
    assert all(0 < figure < 1 for figure in (profile.figures.ndcg_10 if profile.figures else {}).values())


def test_settings_of_the_profile_are_defaults() -> None:
    settings = {
        "name": "it",
        "ranker": "first",
        "profile": "first-mistral",
        "path": "x",
        "window_size": 10,
        "stride": 5,
    }
    model = TypeAdapter(ModelConfig).validate_python(settings)
    assert (model.window_size, model.identifiers, model.prompt.bos_tokens) == (10, "letters", 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranker": "first", "profile": "rank-zephyr"}, "profile rank-zephyr is of ranker generation, not first"),
        (
            {"ranker": "first", "profile": "nothing"},
            "no profile 'nothing'; the profiles are first-mistral, first-qwen3",
        ),
    ],
)
def test_profile_that_does_not_fit_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [{"name": "it", "path": "x"} | settings])


def test_checkpoint_without_manifest_or_profile_is_refused_with_the_profiles(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"or name a profile as in it=PROFILE:.* \(first-mistral, first-qwen3, pe-"):
        served_model(f"it={tmp_path}")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("published") / "first", "qwen3", byte_level())


def test_served_model_has_the_style_of_its_profile_and_warns_of_our_prompt(published: Path, encoder: Encoder) -> None:
    config = load_config(None, [served_model(f"it=first-qwen3:{published}")])
    ranker = load_models(config.models[:1], encoder, "cpu").rankers["it"]
    assert isinstance(ranker, FirstRanker)
    assert "needs its publisher's prompt (rank_zephyr_alpha_template.yaml of" in ranker.info.warning
    (text,) = ranker.prepare(Query("q"), [Passage("a", "donâ€™t " * 500)]).passages
    assert text.text == "don't " * 299 + "don't"


def test_template_in_the_folder_is_the_publishers(published: Path, encoder: Encoder, tmp_path: Path) -> None:
    folder = tmp_path / "with-template"
    folder.symlink_to(published)
    template = published / "template.yaml"
    template.write_text("{prefix: '{query}', body: '[{rank}] {candidate} ', suffix: 'order {num}'}", encoding="utf-8")
    try:
        settings = served_model(f"it=first-qwen3:{folder}")
        assert settings["template"] == str(folder / "template.yaml")
        assert load_models(load_config(None, [settings]).models[:1], encoder, "cpu").rankers["it"].info.warning == ""
    finally:
        template.unlink()


def test_profile_is_a_ranker_of_the_evaluation() -> None:
    (spec,) = parse_systems([], ["it=rank-zephyr:folder"], "")
    assert spec.is_served
    assert model_config(spec, EvaluationSettings(out=Path("out"), template="own.yaml")) == {
        "name": "it",
        "path": "folder",
        "profile": "rank-zephyr",
        "ranker": "generation",
        "template": "own.yaml",
    }
    with pytest.raises(ConfigError, match="profile rank-zephyr needs its checkpoint: --system NAME=rank-zephyr:PATH"):
        parse_systems(["rank-zephyr"], [], "")


def test_folder_of_a_profile_must_exist(encoder: Encoder) -> None:
    config = load_config(None, [served_model("it=first-qwen3:/no/such/folder")])
    with pytest.raises(CheckpointError, match="there is no folder /no/such/folder"):
        load_models(config.models[:1], encoder, "cpu")
