"""Files that a configuration names: what is missing or something else is refused before anything heavy is loaded."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from rerank.checkpoints import bundled
from rerank.config import load_config
from rerank.errors import CheckpointError, ConfigError, IndexMismatch
from rerank.service.startup import check_before_loading, check_checkpoints
from tests.serving import TIMEOUT_S

BASE = {"listen": "127.0.0.1:0"}
#: Runs `rerank` with the arguments and prints the modules that it imported.
CLI = "import sys; from rerank.commands.cli import main\ntry: main()\nfinally: print(*sys.modules)"


def check(path: Path, settings: dict[str, Any]) -> None:
    """Checks the settings as the file `path` gives them, and what they name."""
    path.write_text(yaml.safe_dump(BASE | settings))
    config = load_config(path)
    check_before_loading(config)
    check_checkpoints(config)


def model(ranker: str = "first", **settings: object) -> dict[str, Any]:
    return {"models": [{"name": "mine", "ranker": ranker, **settings}]}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            model(path="nowhere"),
            "model mine: there is no folder nowhere (relative paths begin at the working directory, ",
        ),
        (model("pe-rank", path="nowhere"), "model mine: there is no folder nowhere"),
        (model("generation", path="nowhere"), "model mine: there is no folder nowhere"),
        (model(path="organisation/model"), "model mine: there is no folder organisation/model"),
        (model(path="nowhere.gguf"), "model mine: nowhere.gguf cannot be read: No such file or directory"),
        (model(path="x" * 5000), "model mine: there is no folder xxx"),
        (model(template="nowhere.yaml"), "model mine: template 'nowhere.yaml' is neither a file nor one of first, "),
        (model("pe-rank", template="perank"), "template 'perank' is neither a file nor .*; did you mean pe_rank?"),
        (model(template="x" * 5000), "model mine: template 'xxx"),
        (model(served_by={"kind": "vllm", "urls": ["http://x"], "model": "m"}, path="nowhere"), "no folder nowhere"),
        (model(served_by={"kind": "vllm", "urls": ["http://x"], "model": "m"}, tokenizer="./no"), "no folder ./no"),
        ({"index": "nowhere"}, "nowhere is no index: it has no manifest.json (relative paths begin at"),
        ({"encoder": "./nowhere"}, "encoder: there is no folder ./nowhere (relative paths begin at"),
        ({"keys": "nowhere"}, "keys: nowhere cannot be read: No such file or directory (relative paths begin at"),
        ({"keys": "."}, "keys: . cannot be read: it is a folder, not a file"),
        (
            {"tls": {"certificate": "nowhere", "key": "nowhere"}},
            "tls: nowhere cannot be read: No such file or directory",
        ),
        ({"http": {"listen": "127.0.0.1:0", "qrels": "nowhere"}}, "--qrels nowhere: there is no such file or folder"),
        ({"listen": "127.0.0.1:" + "1" * 5000}, "cannot listen on 127.0.0.1:111"),
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


def test_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    with pytest.raises(
        CheckpointError, match=r"checkpoint has no config\.json or adapter_config\.json; give the folder"
    ):
        check(tmp_path / "service.yaml", model(path=str(checkpoint)))
    (checkpoint / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"checkpoint has no weights \(\*\.safetensors or \*\.bin\); copy the"):
        check(tmp_path / "service.yaml", model(path=str(checkpoint)))
    (checkpoint / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: .*; copy the checkpoint again"):
        check(tmp_path / "service.yaml", model(path=str(checkpoint)))
    save_file({"a": np.zeros(3)}, checkpoint / "model.safetensors")
    check(tmp_path / "service.yaml", model(path=str(checkpoint)))


def test_adapter_without_its_base_or_with_a_wrong_template_is_refused(tmp_path: Path) -> None:
    adapter = Path(shutil.copytree(bundled.FIRST, tmp_path / "adapter"))
    check(tmp_path / "service.yaml", model(path=str(adapter)))
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "../no-such-base"}))
    with pytest.raises(
        CheckpointError, match=r"adapter is an adapter of \.\./no-such-base, and there is no such folder .*; write"
    ):
        check(tmp_path / "service.yaml", model(path=str(adapter)))
    shutil.copy(bundled.FIRST / "adapter_config.json", config)
    (adapter / "template.yaml").write_text("prefix: a\nprefix: b\n")
    with pytest.raises(ConfigError, match=r"template\.yaml: line 2: the key 'prefix' is in line 1 already"):
        check(tmp_path / "service.yaml", model(path=str(adapter)))


def test_default_models_and_the_name_of_the_bundled_language_model_pass(tmp_path: Path) -> None:
    check(tmp_path / "service.yaml", {})
    check(tmp_path / "service.yaml", model(path=bundled.SMOLLM2))
    served_by = {"kind": "vllm", "urls": ["http://x"], "model": "m"}
    check(tmp_path / "service.yaml", model(tokenizer="organisation/model", served_by=served_by))


def test_index_whose_files_are_missing_or_cut_is_refused(index_folder: Path, tmp_path: Path) -> None:
    index = Path(shutil.copytree(index_folder, tmp_path / "index"))
    check(tmp_path / "service.yaml", {"index": str(index)})
    os.truncate(index / "vectors.npy", 200)
    with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it has 200 bytes"):
        check(tmp_path / "service.yaml", {"index": str(index)})
    (index / "vectors.npy").unlink()
    with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it is missing"):
        check(tmp_path / "service.yaml", {"index": str(index)})
    (index / "manifest.json").write_text('{"format": "rerank-index-2", "files": {"a": 3}}')
    with pytest.raises(IndexMismatch, match=r"manifest\.json is damaged"):
        check(tmp_path / "service.yaml", {"index": str(index)})


def test_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for settings in ({"keys": str(pipe)}, {"tls": {"certificate": str(pipe), "key": str(pipe)}}):
        with pytest.raises(ConfigError, match="pipe cannot be read: it is a pipe or a device, not a file"):
            check(tmp_path / "service.yaml", settings)


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, Path]:
    """Three checkpoints that cannot be loaded."""
    folders = {
        name: Path(shutil.copytree(bundled.FIRST, tmp_path / name)) for name in ("listed", "headless", "pickled")
    }
    (folders["listed"] / "adapter_config.json").write_text("[5]")
    (folders["headless"] / "config.json").write_text('{"num_attention_heads": 0}')
    (folders["pickled"] / "adapter_model.safetensors").unlink()
    with zipfile.ZipFile(folders["pickled"] / "adapter_model.bin", "w") as archive:
        archive.writestr("weights/data.pkl", pickle.dumps({"weight": os.getcwd}, protocol=2))
    return folders


def test_check_names_every_model_that_cannot_be_loaded(tmp_path: Path, damaged: dict[str, Path]) -> None:
    models = [{"name": name, "ranker": "first", "path": str(path)} for name, path in damaged.items()]
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(BASE | {"models": models}))
    outcome = subprocess.run(
        [sys.executable, "-c", CLI, "serve", "--config", "service.yaml", "--check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert outcome.returncode == 1
    told = " ".join(outcome.stderr.split())
    assert "Traceback" not in told
    assert "model listed: " in told
    assert "adapter_config.json cannot be read: expected an object in braces" in told
    assert "model headless: " in told
    assert "config.json has num_attention_heads 0" in told
    assert "model pickled: " in told
    assert "holds posix.getcwd, and only tensors are read" in told
    assert "torch" not in outcome.stdout.split()
