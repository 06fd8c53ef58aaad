"""The configuration of a single model, by its name or its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.checkpoints.manifest import served_model
from rerank.config.loading import load_config
from rerank.config.named import config_of_model, named_model
from rerank.errors import ConfigError


def test_folder_of_a_checkpoint_is_the_default_model() -> None:
    folder = Path(__file__).parents[3] / "rerank/checkpoints/pe_rank_minilm"
    (model, *_) = config_of_model(str(folder)).models
    assert (model.name, model.ranker) == ("pe_rank_minilm", "pe-rank")


@pytest.mark.parametrize("name", ["", "pe-runk", "no/such/folder", "rank-zephyr:no/such/folder"])
def test_other_name_is_refused_with_the_names_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError, match="first, pe-rank-first, identity, and there is no such folder"):
        config_of_model(name)


def test_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no rerank\.json.*name a profile as in PROFILE:/") as caught:
        config_of_model(str(tmp_path))
    assert str(caught.value).startswith(f"model '{tmp_path}': {tmp_path} has no")
    assert "--model" not in str(caught.value)


def test_folder_without_a_model_is_refused_with_the_result_inside_it(tmp_path: Path) -> None:
    missing = "rerank.json, config.json, adapter_config.json"
    with pytest.raises(ConfigError, match=f"holds no checkpoint: it has no {missing}; .* such as runs/mine/final"):
        config_of_model(str(tmp_path))
    (tmp_path / "final").mkdir()
    with pytest.raises(ConfigError, match=f"such as {tmp_path}/final"):
        config_of_model(str(tmp_path))
    with pytest.raises(
        ConfigError,
        match=r"^--model a=no/such: there is no folder no/such",
    ):
        served_model("a=no/such")


def test_bundled_model_may_be_added_by_its_name() -> None:
    config = load_config(None, [named_model("pe-rank-first")])
    assert [model.name for model in config.models] == ["pe-rank-first", "default", "pe-rank", "first", "identity"]
    assert config.models[0] == config_of_model("pe-rank-first").models[0]
