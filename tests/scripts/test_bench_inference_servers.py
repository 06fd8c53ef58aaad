"""The side by side of our engine with inference servers: the addresses it takes, and how it compares scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import ConfigError
from scripts.bench import inference_servers as bench


def test_each_server_is_a_system_of_its_own_beside_the_local_engine(tmp_path: Path) -> None:
    models = bench._models(tmp_path, ["on=http://a:1", "off=http://b:2"], "smollm2", "float32")
    assert list(models) == ["local", "on", "off"]
    assert models["local"].served_by is None
    assert [models[label].served_by.urls for label in ("on", "off")] == [("http://a:1",), ("http://b:2",)]


@pytest.mark.parametrize("urls", [["http://a:1"], ["local=http://a:1"], ["on=http://a:1", "on=http://b:2"]])
def test_server_without_a_label_of_its_own_is_refused(tmp_path: Path, urls: list[str]) -> None:
    with pytest.raises(ConfigError, match="write LABEL=URL"):
        bench._models(tmp_path, urls, "smollm2", "float32")


def test_agreement_counts_equal_orders() -> None:
    ours = [bench.Measured(1, 1.0, [1.0], [[-1.0, -2.0], [-1.0, -2.0]])]
    its = [bench.Measured(1, 1.0, [1.0], [[-1.25, -2.0], [-3.0, -2.0]])]
    assert bench._agreement(ours, its) == "scores within 2.0e+00; 1 of 2 orders the same"
