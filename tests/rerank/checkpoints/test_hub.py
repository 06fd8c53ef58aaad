"""Models by their names on the hub: what is downloaded, compared and kept, and what is said if that fails."""

import json
import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerank.checkpoints import hub as module
from rerank.checkpoints.hub import download, is_hub_name
from rerank.checkpoints.manifest import model_id
from rerank.errors import CheckpointError, ConfigError
from tests.hub_server import HubServer, files_of, running_hub, use_hub

NAME = "org/model"
#: What a model is loaded from, and what repositories have in addition.
NEEDED = {
    "config.json": '{"model_type": "bert", "architectures": ["BertForSequenceClassification"]}',
    "tokenizer.json": "{}",
    "vocab.txt": "a\n",
    "chat_template.jinja": "x",
    "artifact.metadata": "[]",
    "model.safetensors": "weights",
}
OTHER = {
    "README.md": "text",
    "modeling_bert.py": "raise AssertionError",
    "pytorch_model.bin": "the same weights",
    "consolidated.safetensors": "the same weights",
    "onnx/model.onnx": "the same weights",
    "onnx/config.json": "{}",
    "training_args.bin": "pickled",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with one model, an empty cache and an empty working directory."""
    module._log_once.cache_clear()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with running_hub() as server:
        server.models[NAME] = write(tmp_path / "published", NEEDED | OTHER)
        use_hub(server.url, tmp_path / "cache", monkeypatch)
        yield server


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on as another process, with HF_HUB_OFFLINE."""
    module._list_files.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def names_in(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in files_of(folder)}
    return found - {module._RECORD_FILE}


def test_card_is_downloaded_if_the_profile_has_words_of_its_publisher(hub):
    name = "BAAI/bge-reranker-v2-gemma"
    hub.models[name] = hub.models[NAME]
    assert names_in(download(name, weights=False)) == NEEDED.keys() - {"model.safetensors"} | {"README.md"}


def test_files_of_the_model_are_downloaded_and_no_code(hub, caplog):
    with caplog.at_level(logging.INFO):
        folder = download(NAME)
    assert names_in(folder) == NEEDED.keys() == hub.downloaded
    assert (folder / "model.safetensors").read_text() == "weights"
    said = " ".join(caplog.messages)
    assert f"{NAME}: commit {hub.commit(NAME)} (main)" in said
    assert "downloading 0.0 MB to" in said
    assert "are free" in said
    assert model_id(folder) == NAME


def test_modules_are_downloaded_from_their_folders(hub):
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    files = {"modules.json": json.dumps(modules), "2_Dense/config.json": "{}", "2_Dense/pytorch_model.bin": "dense"}
    write(hub.models[NAME], files | {"3_Dense/model.safetensors": "of no module"})
    assert names_in(download(NAME)) == NEEDED.keys() | files.keys()


def test_weights_of_torch_are_downloaded_where_there_are_no_others(hub):
    (hub.models[NAME] / "model.safetensors").unlink()
    assert names_in(download(NAME)) == NEEDED.keys() - {"model.safetensors"} | {"pytorch_model.bin"}


def test_refused_settings_keep_the_weights_from_being_downloaded(hub):
    write(hub.models[NAME], {"modules.json": '[{"path": "", "type": "os.system"}]'})
    with pytest.raises(CheckpointError, match="needs code from its publisher"):
        download(NAME)
    write(hub.models[NAME], {"modules.json": '[{"path": "../..", "type": "sentence_transformers.models.Dense"}]'})
    module._list_files.cache_clear()
    with pytest.raises(CheckpointError, match="not inside of this folder"):
        download(NAME)
    assert "model.safetensors" not in hub.downloaded


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (["README.md"], r"org/model has no config\.json or adapter_config\.json"),
        (["config.json", "onnx/model.onnx"], r"no weights in \*\.safetensors or .*only \.json, \.onnx"),
    ],
)
def test_repository_without_a_model_is_refused(hub, left, message):
    for file in files_of(hub.models[NAME]):
        if file.relative_to(hub.models[NAME]).as_posix() not in left:
            file.unlink()
    with pytest.raises(CheckpointError, match=message):
        download(NAME)


def test_name_without_weights_has_settings_alone(hub):
    assert names_in(download(NAME, weights=False)) == NEEDED.keys() - {"model.safetensors"}


def test_cached_model_is_used_offline(hub, monkeypatch, caplog):
    folder = download(NAME)
    hub.asked.clear()
    go_offline(monkeypatch)
    with caplog.at_level(logging.INFO):
        assert download(NAME) == download(f"{NAME}@main") == download(f"{NAME}@{hub.commit(NAME)}") == folder
    assert hub.asked == []
    assert "from the cache, as the hub cannot be asked (HF_HUB_OFFLINE is set)" in " ".join(caplog.messages)


def test_cached_model_is_used_while_the_hub_does_not_answer(hub, monkeypatch):
    folder = download(NAME)
    module._list_files.cache_clear()
    del hub.models[NAME]
    assert download(NAME) == folder
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert download(NAME) == folder


def test_whole_commit_is_not_asked_for_again(hub):
    pinned = f"{NAME}@{hub.commit(NAME)}"
    folder = download(pinned)
    module._list_files.cache_clear()
    hub.asked.clear()
    assert download(pinned) == folder
    assert hub.asked == []


def test_new_commit_is_downloaded_next_to_the_old_one(hub, monkeypatch):
    old, commit = download(NAME), hub.commit(NAME)
    write(hub.models[NAME], {"model.safetensors": "new weights"})
    module._list_files.cache_clear()
    hub.asked.clear()
    new = download(NAME)
    assert (new / "model.safetensors").read_text() == "new weights"
    assert hub.downloaded == {"model.safetensors"}
    go_offline(monkeypatch)
    assert download(NAME) == new
    assert download(f"{NAME}@{commit}") == old


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_file_with_another_hash_is_refused_and_downloaded_again(hub, file):
    hub.broken.add(file)
    with pytest.raises(ConfigError, match=rf"{file} has the hash [0-9a-f, ]+, and the hub says [0-9a-f]+; the file"):
        download(NAME)
    hub.broken.clear()
    module._list_files.cache_clear()
    assert (download(NAME) / file).read_text() == NEEDED[file]


def test_file_that_a_power_loss_cut_is_downloaded_again(hub, monkeypatch):
    folder = download(NAME)
    (folder / "model.safetensors").resolve().write_text("wei")
    assert (download(NAME) / "model.safetensors").read_text() == "weights"
    (folder / "model.safetensors").resolve().write_text("wei")
    go_offline(monkeypatch)
    with pytest.raises(ConfigError, match=r"only a part of it: .*model\.safetensors has 3 of 7 bytes"):
        download(NAME)


def test_connection_that_ends_is_named_and_the_next_call_goes_on(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)  # between its repetitions
    hub.cut.add("model.safetensors")
    with pytest.raises(ConfigError, match=r"^the download of org/model stopped \(.*only the missing files"):
        download(NAME)
    hub.cut.clear()
    hub.asked.clear()
    module._list_files.cache_clear()
    download(NAME)
    assert hub.downloaded == {"model.safetensors"}


def test_killed_download_goes_on_with_the_files_that_are_missing(hub, tmp_path, monkeypatch):
    """Another process is killed between the settings and the weights, and leaves a part of a file."""
    program = (
        "import os, signal, sys\n"
        "from huggingface_hub import constants\n"
        "from rerank.checkpoints import hub\n"
        "hub._fetch_weights = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"hub.download({NAME!r})\n"
    )
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "PATH": "/usr/bin:/bin"}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    blobs = tmp_path / "home" / "hub" / "models--org--model" / "blobs"
    (blobs / "abc.incomplete").touch()
    hub.asked.clear()
    with monkeypatch.context() as patch:
        go_offline(patch)
        with pytest.raises(ConfigError, match="no folder org/model"):
            download(NAME)
        with pytest.raises(ConfigError, match="only a part of it: weights are missing"):
            download(f"{NAME}@{hub.commit(NAME)}")
    monkeypatch.setattr(module, "_ABANDONED_S", -1.0)
    assert names_in(download(NAME)) == NEEDED.keys()
    assert hub.downloaded == {"model.safetensors"}
    assert not list(blobs.glob("*.incomplete"))


def test_file_that_another_process_is_writing_stays(hub):
    writing = module._store(module._cache_folder(), NAME) / "blobs" / "abc.incomplete"
    writing.parent.mkdir(parents=True)
    writing.touch()
    download(NAME)
    assert writing.is_file()
    assert time.time() - writing.stat().st_mtime < module._ABANDONED_S


def test_model_that_another_program_downloaded_is_compared(hub, monkeypatch):
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(NAME))
    go_offline(monkeypatch)
    assert download(NAME) == folder
    (folder / module._RECORD_FILE).unlink()
    (folder / "model.safetensors").resolve().write_text("WEIGHTS")
    with pytest.raises(ConfigError, match=r"model\.safetensors has the hash"):
        download(NAME)


def test_full_disk_is_named_before_the_download(hub, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=5)
    monkeypatch.setattr("rerank.checkpoints.hub.shutil.disk_usage", lambda _: usage)
    message = r"org/model needs 0\.0 MB in .*, where 0\.0 MB are free; make room, or .*HF_"
    with pytest.raises(ConfigError, match=message):
        download(NAME)
    assert hub.downloaded == set()


def test_mistyped_gated_and_private_names_get_one_line_with_the_way_out(hub):
    hub.models["org/gated"] = hub.models[NAME]
    hub.gated.add("org/gated")
    for name, message in [
        ("castorini/first_mistrall", r"no folder castorini/first_mistrall .*did you mean castorini/first_mistral\?"),
        ("org/private", r"has no such model or does not show it; correct the name, or set HF_TOKEN"),
        (f"{NAME}@v2", r"org/model has no revision v2; choose one at http://.*/org/model/commits/main"),
        ("org/gated", r"org/gated is gated: accept its terms at http://.*/org/gated, and log in by `hf auth login`"),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            download(name)
        assert "\n" not in str(caught.value)


def test_hub_that_cannot_be_asked_is_named_with_the_reason(hub, monkeypatch):
    go_offline(monkeypatch)
    message = r"no folder org/model, and .*of this name \(HF_HUB_OFFLINE is set\); give the"
    with pytest.raises(ConfigError, match=message):
        download(NAME)
    assert hub.asked == []


def test_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["org/model", "org/model@main", "org/model@refs/pr/1", "O.r-g/mod_el.v2"]
    assert [name for name in names if not is_hub_name(name)] == []
    paths = ["model", "./org/model", "/org/model", "~/model", "../model", "a/b/c", "org/model@"]
    paths += ["org/", "@a/b", "a/b c"]
    assert [path for path in paths if is_hub_name(path)] == []
    (tmp_path / "org").mkdir()
    assert not is_hub_name("org/model")
    with pytest.raises(ConfigError, match="no name of a model"):
        download("a b")
