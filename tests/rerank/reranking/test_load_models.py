"""Loading: a stranger's folder stops its own model only, whatever it makes the libraries do."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tokenizers import Regex, Tokenizer, pre_tokenizers

from rerank.checkpoints import bundled
from rerank.config import PERankModel, load_config
from rerank.config.named import named_model
from rerank.errors import CheckpointError, ConfigError
from rerank.reranking.load_models import ModelLoader, load_ranker, zero_init_checkpoint
from rerank.reranking.registry import load_models
from rerank.reranking.reranker import check_models
from rerank.service.startup import check_before_loading
from tests.causal_lms import finish, write_causal_lm
from tests.damaged_folders import content, setting
from tests.serving import wait_for
from tests.small_tokenizers import byte_level

#: Renders for years. The sandbox of transformers bounds each range, not their product.
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
ENDLESS += "{% endfor %}{% endfor %}"


def panic(folder: Path) -> None:
    """A regex that makes tokenizers panic on a text that ends otherwise: a panic of Rust is not an Exception."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(\w+\s?)+$"), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))


def pipe_as_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def template_of_many_pieces(folder: Path) -> None:
    """12 MB, of which tokenizers made 6 GB."""
    path = folder / "tokenizer.json"
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    of_pair = [piece, {"Sequence": {"id": "B", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": [piece] * 100_000, "pair": of_pair, "special_tokens": {}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": template}))


def many_tensors(folder: Path) -> None:
    """A name each, as the log would have had a line each."""
    header = {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(60_000)}
    content = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)


def without_base(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(bundled.FIRST, folder)
    setting("adapter_config.json", "base_model_name_or_path", "../no-such-base")(folder)


def pe_rank_with(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    def damaged(folder: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(bundled.PE_RANK, folder)
        damage(folder)

    return damaged


#: What is done to the folder of a checkpoint of FIRST, and why it is then not served.
STRANGERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "panic of Rust": (panic, "PanicException"),
    "template": (content("template.yaml", b"prefix: a\nprefix: b\n"), "SHA-256 of the template is"),
    "window of 1": (
        setting("rerank.json", "window_size", 1),
        "window_size: should be greater than or equal to 2, given 1",
    ),
    "window of 10^18": (setting("rerank.json", "window_size", 10**18), "should be less than or equal to 100000"),
    "window of infinity": (content("rerank.json", b'{"window_size": 1e400}'), "window_size: "),
    "window of 500": (setting("rerank.json", "window_size", 500), "window_size 500 exceeds the 52 passages"),
    "manifest": (content("rerank.json", b"\xff{"), r"rerank\.json: line 1: the byte 0xFF is not UTF-8"),
    "manifest of PE-Rank": (
        pe_rank_with(setting("rerank.json", "window_size", "x")),
        r"rerank\.json: window_size: expected a whole number",
    ),
    "manifest of a PE-Rank that cannot be read": (
        pe_rank_with(content("rerank.json", b'{"ranker": "pe-rank", "window_size": 9, "base": 5}')),
        r"rerank\.json: base: expected a text, given 5",
    ),
    "pipe as weights": (pipe_as_weights, r"model\.safetensors is a pipe or a device, not a file"),
    "endless chat template": (
        content("chat_template.jinja", ENDLESS.encode()),
        "loading takes more than 1 s; copy the checkpoint again",
    ),
    "adapter without its base": (without_base, "no-such-base"),
    "configuration": (content("config.json", b"[5]"), r"config\.json cannot be read: expected an object in braces"),
    "template of 100,000 pieces": (
        template_of_many_pieces,
        r"tokenizer\.json has 400,\d\d\d values beside its vocabulary, and a model has at most 2,000",
    ),
    "a billion layers": (
        setting("config.json", "num_hidden_layers", 10**9),
        r"num_hidden_layers 1000000000, and a model has at most 1000;",
    ),
    "a vocabulary of 10^12": (setting("config.json", "vocab_size", 10**12), "at most 100000000;"),
    "60,000 tensors": (many_tensors, r"safetensors has 60,000 tensors, and a model has at most 50,000"),
    "names of labels": (setting("config.json", "id2label", 5), "cannot be loaded"),
}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_causal_lm(tmp_path_factory.mktemp("lm") / "first", "qwen3", byte_level())
    finish(folder, "first", "first", identifiers="letters")
    return folder


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_folder_stops_its_own_model_only(first, encoder, tmp_path, stranger):
    damage, problem = STRANGERS[stranger]
    folder = Path(shutil.copytree(first, tmp_path / "stranger"))
    damage(folder)
    config = load_config(None, [named_model(f"mine={folder}")], listen="127.0.0.1:0")
    check_before_loading(config)
    models = [model for model in config.models if model.name in ("mine", "identity")]
    registry = load_models(models, ModelLoader(encoder, "cpu", max_load_s=1 if "endless" in stranger else 60))
    mine, identity = registry.describe()
    assert identity.problem == ""
    assert re.search(problem, mine.problem)
    assert "bug" not in mine.problem


@pytest.mark.slow
def test_signal_while_a_model_hangs_in_loading_ends_the_process(first, tmp_path):
    folder = Path(shutil.copytree(first, tmp_path / "endless"))
    (folder / "chat_template.jinja").write_text(ENDLESS)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"models": [{"name": "m", "ranker": "first", "path": str(folder)}]}))
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--listen", "127.0.0.1:0", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: "tokenizers" in Path(f"/proc/{process.pid}/maps").read_text(), 240)
            time.sleep(3)  # until it loads
            assert process.poll() is None
            process.terminate()
            assert process.wait(5) == -signal.SIGTERM
        finally:
            process.kill()


def test_check_names_every_model_that_cannot_be_loaded(tmp_path):
    names = ("listed", "headless", "pickled", "empty")
    folders = {name: Path(shutil.copytree(bundled.FIRST, tmp_path / name)) for name in names}
    content("adapter_config.json", b"[5]")(folders["listed"])
    content("config.json", b'{"num_attention_heads": 0}')(folders["headless"])
    (folders["pickled"] / "adapter_model.safetensors").unlink()
    with zipfile.ZipFile(folders["pickled"] / "adapter_model.bin", "w") as archive:
        archive.writestr("weights/data.pkl", pickle.dumps({"weight": os.getcwd}, protocol=2))
    shutil.rmtree(folders["empty"])
    folders["empty"].mkdir()
    models = [{"name": name, "ranker": "first", "path": str(path)} for name, path in folders.items()]
    with pytest.raises(CheckpointError) as caught:
        check_models(load_config(None, models=models, device="cpu"))
    told = dict(line.removeprefix("model ").split(": ", 1) for line in str(caught.value).splitlines())
    assert "adapter_config.json cannot be read: expected an object in braces" in told["listed"]
    assert "config.json has num_attention_heads 0" in told["headless"]
    assert "the checkpoint was changed after training" in told["pickled"]
    assert str(folders["empty"]) in told["empty"]


def test_zero_init_checkpoint_is_written_once_to_the_users_cache(encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = zero_init_checkpoint(encoder)
    written_ns = (folder / "model.safetensors").stat().st_mtime_ns
    assert zero_init_checkpoint(encoder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written_ns


@pytest.mark.parametrize("is_trained", [True, False])
def test_model_that_was_trained_with_its_plain_prompt_has_no_warning_about_a_chat_template(
    encoder, tmp_path, is_trained
):
    tokenizer = byte_level()
    tokenizer.chat_template = None
    folder = write_causal_lm(tmp_path / "first", "qwen3", tokenizer)
    if is_trained:
        finish(folder, "first", "first", identifiers="letters", passage_tokens=100)
    model = named_model(f"m={folder}" if is_trained else f"m=first:{folder}")
    config = load_config(None, models=[{**model, "precision": "float32"}])
    (description,) = load_models(config.models[:1], ModelLoader(encoder, "cpu")).describe()
    assert not description.problem
    assert ("has no chat template" in description.info.warning) is not is_trained


def test_weight_of_words_that_dynamic_decoding_would_ignore_is_refused(encoder):
    settings = {"name": "pe", "ranker": "pe-rank", "path": bundled.PE_RANK, "decoding": "dynamic"}
    with pytest.raises(ConfigError, match=r"^model pe: lexical_weight 0\.5 has no effect.*decoding: one_step"):
        load_ranker(PERankModel.model_validate(settings | {"lexical_weight": 0.5}), encoder, "cpu")
    for allowed in ({}, {"lexical_weight": 0.0}, {"lexical_weight": 0.5, "decoding": "one_step"}):
        load_ranker(PERankModel.model_validate(settings | allowed), encoder, "cpu")
