"""Files that a configuration names: what is missing or something else is refused before anything heavy is loaded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rerank.config import ServiceConfig, load_config
from rerank.config.encoder import EncoderConfig
from rerank.errors import ConfigError, IndexMismatch
from rerank.reranking.reranker import check_models
from rerank.retrieval.index_format import FORMAT
from rerank.service.startup import check_before_loading

BASE = {"listen": "127.0.0.1:0"}


def check(path: Path, settings: dict[str, Any]) -> None:
    """Checks the settings as the file `path` gives them, and what they name."""
    path.write_text(yaml.safe_dump(BASE | settings))
    check_before_loading(load_config(path))


def model(ranker: str = "first", **settings: object) -> dict[str, Any]:
    return {"models": [{"name": "mine", "ranker": ranker, **settings}]}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            model(path="nowhere"),
            "model mine: there is no folder nowhere (relative paths begin at the working directory, ",
        ),
        (
            model(path="organisation/model"),
            "model mine: there is no folder organisation/model; if it is a model of the Hugging Face hub, download it: "
            "hf download organisation/model --local-dir organisation/model",
        ),
        (
            model(template="nowhere.yaml"),
            "model mine: template 'nowhere.yaml' is neither a file nor one of e2rank, ",
        ),
        (model(served_by={"kind": "vllm", "url": "http://x", "model": "m"}, path="/nowhere"), "no folder /nowhere"),
        ({"index": "nowhere"}, "nowhere is not an index: it has no manifest.json (relative paths begin at"),
        ({"encoder": "./nowhere"}, "encoder: there is no folder ./nowhere (relative paths begin at"),
        ({"keys": "nowhere"}, "keys: nowhere cannot be read: No such file or directory (relative paths begin at"),
        (
            {"tls": {"certificate": "nowhere", "key": "nowhere"}},
            "tls: nowhere cannot be read: No such file or directory",
        ),
        ({"http": {"listen": "127.0.0.1:0", "qrels": "nowhere"}}, "--qrels nowhere: there is no such folder"),
        ({"listen": "x" * 100 + ".org:1"}, "cannot listen on xxx"),
    ],
)
def test_path_that_leads_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, IndexMismatch), match=problem.replace("(", r"\(").replace("?", r"\?")) as caught:
        check(tmp_path / "service.yaml", settings)
    assert "\n" not in str(caught.value)


def test_check_finds_an_index_of_another_encoder(index_folder: Path) -> None:
    config = ServiceConfig.model_validate(BASE | model("identity") | {"index": str(index_folder)})
    check_models(config)
    with pytest.raises(IndexMismatch, match="was built with encoder"):
        check_models(config.model_copy(update={"encoder": EncoderConfig(query_prompt="query: ")}))


def test_index_whose_files_are_missing_or_cut_is_refused(index_folder: Path, tmp_path: Path) -> None:
    index = Path(shutil.copytree(index_folder, tmp_path / "index"))
    check(tmp_path / "service.yaml", {"index": str(index)})
    os.truncate(index / "vectors.npy", 200)
    with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it has 200 bytes"):
        check(tmp_path / "service.yaml", {"index": str(index)})
    (index / "vectors.npy").unlink()
    with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it is missing"):
        check(tmp_path / "service.yaml", {"index": str(index)})
    (index / "manifest.json").write_text(f'{{"format": "{FORMAT}", "files": {{"a": 3}}}}')
    with pytest.raises(IndexMismatch, match=r"manifest\.json is damaged"):
        check(tmp_path / "service.yaml", {"index": str(index)})


def test_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for settings in ({"keys": str(pipe)}, {"tls": {"certificate": str(pipe), "key": str(pipe)}}):
        with pytest.raises(ConfigError, match="pipe cannot be read: it is a pipe or a device, not a file"):
            check(tmp_path / "service.yaml", settings)
