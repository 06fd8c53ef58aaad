"""Loading: dtype by device and precision, and transformers with exactly the tensors of their checkpoint."""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rerank.checkpoints.weights import read_config
from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.loading import check_findable, load_causal_lm, load_tokenizer_of, pick_device
from rerank.models.precision import uses_autocast, weights_dtype
from rerank.rankers.pe_checkpoint import build_transformer
from tests.causal_lms import SIZES, write_causal_lm
from tests.hub_server import HubServer, running_hub, use_hub
from tests.random_models import DECODERS, random_model
from tests.small_tokenizers import byte_level

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TOKEN_EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "qwen3", byte_level())


@pytest.mark.parametrize(
    ("device", "precision", "width", "dtype"),
    [
        (CPU, "auto", 4096, torch.float32),
        (CPU, "float32", 4096, torch.float32),
        (CPU, "bfloat16", 4096, torch.float32),
        (CUDA, "auto", 4096, torch.bfloat16),
        (CUDA, "float32", 4096, torch.float32),
        (CUDA, "bfloat16", 4096, torch.bfloat16),
        (CUDA, "bfloat16", 576, torch.float32),
        (CUDA, "auto", 576, torch.float32),
        (CUDA, "auto", 577, torch.bfloat16),
        (CUDA, "auto", 0, torch.bfloat16),
    ],
)
def test_device_precision_and_width_set_the_dtype_of_the_weights(monkeypatch, device, precision, width, dtype):
    monkeypatch.setattr("rerank.models.precision._MAX_FLOAT32_STREAM_WIDTH", 576)
    assert weights_dtype(device, precision, width) == dtype


@pytest.mark.parametrize(
    ("dtype", "precision", "autocast"),
    [(torch.float32, "bfloat16", True), (torch.float32, "float32", False), (torch.bfloat16, "bfloat16", False)],
)
def test_float32_weights_are_multiplied_in_bfloat16_under_autocast(dtype, precision, autocast):
    assert uses_autocast(random_model(DECODERS["llama"], dtype), precision) == autocast


def test_transformer_computes_as_the_full_causal_lm(lm):
    weights = load_file(lm / "model.safetensors")
    built = build_transformer(read_config(lm), weights, weights[TOKEN_EMBEDDINGS], CPU)
    ids = torch.arange(40)[None]
    expected = AutoModelForCausalLM.from_pretrained(lm).eval().base_model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(built(input_ids=ids).last_hidden_state, expected, atol=1e-6, rtol=0)
    assert not any(parameter.is_meta or parameter.requires_grad for parameter in built.parameters())
    assert not any(buffer.is_meta for buffer in built.buffers())


def test_models_with_tied_weights_are_whole_when_two_threads_load_them_at_once(tmp_path):
    tokenizer = byte_level()
    tied = LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **SIZES)
    AutoModelForCausalLM.from_config(tied).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    before, both = PreTrainedModel.tie_weights, threading.Barrier(2)

    def load(_: int) -> None:
        both.wait()
        model = load_causal_lm(tmp_path, CPU, "float32").model
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(load, range(20)))
    assert PreTrainedModel.tie_weights is before


def test_code_in_a_checkpoint_is_not_run_whatever_the_standard_input_says(lm, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    copy = Path(shutil.copytree(lm, tmp_path / "copy"))
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": code}), encoding="utf-8")
    marker = tmp_path / "ran"
    (copy / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"custom code|own"):
        load_causal_lm(copy, CPU)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["mps", "meta", "xpu", "vulkan", "gpu", "cuda:x", ""])
def test_device_that_models_do_not_run_on_is_refused_with_those_that_they_do(name):
    with pytest.raises(ConfigError, match=f"device '{name}' runs no models here; use auto, cpu, cuda or cuda:N"):
        pick_device(name)


def test_missing_card_is_refused_with_the_number_of_cards(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match=r"'cuda:2' is configured, but torch .* finds 2 CUDA devices"):
        pick_device("cuda:2")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"'cuda' is configured, but torch .* finds no CUDA devices"):
        pick_device("cuda")


def test_causal_lm_without_its_tokenizer_is_refused_with_what_to_add(lm, tmp_path):
    folder = shutil.copytree(lm, tmp_path / "lm")
    for file in [*folder.glob("tokenizer*"), *folder.glob("chat_template*")]:
        file.unlink()
    for load in (load_causal_lm, lambda path, _: load_tokenizer_of(path)):
        with pytest.raises(CheckpointError, match=r"lm has no tokenizer \(tokenizer\.json.*save_pretrained"):
            load(folder, CPU)


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of a hub that does not answer, and an empty working directory."""
    (tmp_path / "work").mkdir()
    use_hub("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, no_cache: Path, tmp_path: Path) -> Iterator[HubServer]:
    """A hub that knows org/known."""
    with running_hub() as server:
        server.models["org/known"] = tmp_path / "work"
        use_hub(server.url, no_cache, monkeypatch)
        yield server


def names_asked(hub: HubServer) -> list[str]:
    """The names of models that the hub was asked for; its client asks further questions, too."""
    return [path.removeprefix("/api/models/") for path in hub.asked if path.startswith("/api/models/")]


def check(name: str) -> None:
    check_findable(name, "--base", "give the folder of a model")


def test_model_that_the_hub_has_passes(hub):
    check("org/known")
    assert names_asked(hub) == ["org/known"]


def test_hub_that_cannot_be_asked_is_an_error(no_cache, monkeypatch):
    with pytest.raises(ConfigError, match=r"^--base: org/model is neither .* cannot be asked \(.+\); give the folder"):
        check("org/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"cannot be asked \(.*HF_HUB_OFFLINE"):
        check("org/known")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_cached_model_passes_without_a_question(no_cache, file):
    model = no_cache / "models--org--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "snapshots" / "abc" / file).write_text("{}")
    check("org/model")


def test_loaders_ask_once(hub, tmp_path):
    """Their libraries would ask again and again, for half a minute to a minute."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f"base of the adapter {adapter}: org/base is neither")):
        load_causal_lm(adapter, torch.device("cpu"))
    with pytest.raises(ConfigError, match="tokenizer: org/tokenizer is neither"):
        load_tokenizer_of("org/tokenizer")
    with pytest.raises(ConfigError, match=r"encoder: there is no folder org/encoder.* no such model"):
        Encoder("org/encoder", "cpu")
    assert names_asked(hub) == ["org/base", "org/tokenizer", "org/encoder/revision/main"]
