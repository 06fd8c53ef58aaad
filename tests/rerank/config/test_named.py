"""The configuration of a single model, by its name or its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.config.named import config_of_model
from rerank.errors import ConfigError


@pytest.mark.parametrize("name", ["default", "first"])
def test_name_of_a_default_model_brings_its_preranker(name: str) -> None:
    assert [model.name for model in config_of_model(name).models] == ["default", "pe-rank"]
    assert [model.name for model in config_of_model("identity").models] == ["identity"]


def test_folder_of_a_checkpoint_is_the_default_model() -> None:
    folder = Path(__file__).parents[3] / "rerank/checkpoints/pe_rank_minilm"
    (model, *_) = config_of_model(str(folder)).models
    assert (model.name, model.ranker) == ("pe_rank_minilm", "pe-rank")


@pytest.mark.parametrize("name", ["", "pe-runk", "no/such/folder", "rank-zephyr:no/such/folder"])
def test_other_name_is_refused_with_the_names_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError, match="none of default, pe-rank, identity, and no folder"):
        config_of_model(name)


def test_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no rerank\.json"):
        config_of_model(str(tmp_path))
