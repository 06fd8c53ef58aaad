"""Names of classes in the files of a folder: those that are needed are known, and every other one is refused."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.run
import torch.utils.collect_env
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SparseStaticEmbedding, SpladePooling
from sentence_transformers.util import fullname, import_from_string
from transformers import AutoModelForCausalLM

from rerank.checkpoints.known_classes import ACTIVATIONS, MODULES, check_class_names, check_known_classes
from rerank.errors import CheckpointError
from rerank.models.cross_encoder import PairScorer
from rerank.models.encoder import Encoder
from rerank.models.loading import load_causal_lm
from tests.causal_lms import write_causal_lm
from tests.cross_encoders import write_cross_encoder
from tests.small_encoder import write_small_encoder
from tests.small_tokenizers import byte_level

CPU = torch.device("cpu")


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def change(path: Path, **settings: object) -> None:
    write(path, (json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}) | settings)


def takes_no_argument(found: object) -> bool:
    try:
        inspect.signature(found).bind()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def test_known_activations_are_modules_that_take_no_argument() -> None:
    for name in ACTIVATIONS:
        activation = import_from_string(name)
        assert issubclass(activation, torch.nn.Module)
        assert takes_no_argument(activation)


@pytest.mark.parametrize(
    "module",
    [Dense, LogitScore, MLMTransformer, Normalize, Pooling, Router, SparseStaticEmbedding, SpladePooling],
)
def test_names_that_sentence_transformers_writes_are_known(module: type) -> None:
    assert fullname(module) in MODULES
    name = module.__name__
    if module is not LogitScore:  # which is younger than the names of today
        sparse = "sparse_encoder." if "sparse_encoder" in module.__module__ else ""
        assert {
            f"sentence_transformers.{sparse}models.{name}",
            f"sentence_transformers.{sparse}models.{name}.{name}",
        } <= (MODULES)


def test_known_names_are_modules_in_the_installed_version() -> None:
    found = 0
    for name in MODULES:
        try:
            module = import_from_string(name)
        except ImportError:
            continue  # of another version, or a place where this class is not
        found += 1
        assert issubclass(module, torch.nn.Module)
    assert found > 40


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("cross-encoder") / "bert", "bert")


@pytest.fixture(scope="module")
def small_encoder(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    return write_small_encoder(tmp_path_factory.mktemp("encoder") / "small", encoder).folder


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of torch that a folder has had called, of those that would start processes."""
    names: list[str] = []
    monkeypatch.setattr(torch.utils.collect_env, "main", lambda: names.append("collect_env"))
    monkeypatch.setattr(torch.distributed.run, "main", lambda args=None: names.append("run"))
    return names


@pytest.mark.parametrize("function", ["torch.utils.collect_env.main", "torch.distributed.run.main"])
@pytest.mark.parametrize(
    "place", ["config_sentence_transformers.json", "config.json", "earlier", "both of config.json"]
)
def test_cross_encoder_calls_no_function_as_its_activation(
    cross_encoder: Path, tmp_path: Path, called: list[str], function: str, place: str
) -> None:
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    if place == "config_sentence_transformers.json":
        change(folder / place, activation_fn=function)
    else:
        (folder / "config_sentence_transformers.json").unlink()
        (folder / "modules.json").unlink()
        if place != "earlier":
            change(folder / "config.json", sentence_transformers={"activation_fn": function})
        if place != "config.json":
            change(folder / "config.json", sbert_ce_default_activation_function=function)
    with pytest.raises(CheckpointError, match=rf"needs code from its publisher \({function}\)"):
        PairScorer(folder, "cpu")
    assert not called


@pytest.mark.parametrize("name", ["relu", 5, ["torch.nn.ReLU"], {"a": "torch.nn.ReLU"}, ""])
def test_activation_that_is_no_full_name_is_refused(cross_encoder: Path, tmp_path: Path, name: Any) -> None:
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    change(folder / "config_sentence_transformers.json", activation_fn=name)
    with pytest.raises(CheckpointError, match="needs code from its publisher"):
        check_class_names(folder)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("options", ["model_args", "model_kwargs", "processor_kwargs", "tokenizer_args"])
def test_folder_cannot_have_its_weights_unpickled_with_code(small_encoder: Path, tmp_path: Path, options: str) -> None:
    """As options of the tokenizer they reach the weights if the tokenizer's class is that of a model."""
    folder, made = shutil.copytree(small_encoder, tmp_path / "model"), tmp_path / "made"
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Payload(made)}, folder / "pytorch_model.bin")
    change(folder / "sentence_bert_config.json", **{options: {"weights_only": False, "use_safetensors": False}})
    if options not in ("model_args", "model_kwargs"):
        change(folder / "tokenizer_config.json", tokenizer_class="BertModel")
    with pytest.raises(CheckpointError, match="weights_only"):
        Encoder(str(folder), "cpu")
    assert not made.exists()


@pytest.mark.parametrize(
    ("file", "settings", "named"),
    [
        ("modules.json", [{"path": "", "type": "torch.utils.collect_env.main"}], "torch.utils.collect_env.main"),
        ("modules.json", [{"path": ""}], "None"),
        ("modules.json", [{"path": "", "type": "sentence_transformers.util.http_get"}], "http_get"),
        ("config.json", {"types": {"a": "os.system"}}, "os.system"),
        ("router_config.json", {"types": {"a": "sentence_transformers.util.misc.fullname"}}, "fullname"),
        ("2_Dense/config.json", {"activation_function": "torch.utils.collect_env.main"}, "collect_env"),
        ("config.json", {"text_config": {"attn_implementation": "someone/kernel"}}, "someone/kernel"),
        ("config.json", {"_attn_implementation": {"text_config": "someone/kernel"}}, "someone/kernel"),
        ("sentence_bert_config.json", {"model_kwargs": {"kernel_config": {}}}, "kernel_config"),
        ("sentence_bert_config.json", {"config_kwargs": {"_configuration_file": "other"}}, "other"),
        ("sentence_bert_config.json", {"transformer_task": "retrieval"}, "retrieval"),
        ("sentence_bert_config.json", {"modality_config": {"text": {"method": "push_to_hub"}}}, "push_to_hub"),
        ("config.4.0.0.json", {"attn_implementation": "someone/kernel"}, "someone/kernel"),
        ("adapter_config.json", {"peft_type": "PROMPT_TUNING", "tokenizer_kwargs": {}}, "PROMPT_TUNING"),
        ("adapter_config.json", {"peft_type": "LORA", "megatron_core": "antigravity"}, "antigravity"),
    ],
)
def test_other_names_are_refused(small_encoder: Path, tmp_path: Path, file: str, settings: Any, named: str) -> None:
    folder = shutil.copytree(small_encoder, tmp_path / "model")
    if file == "2_Dense/config.json":
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        write(folder / "modules.json", [*modules, {"path": "2_Dense", "type": fullname(Dense)}])
    if isinstance(settings, dict) and (folder / file).is_file():
        change(folder / file, **settings)
    else:
        write(folder / file, settings)
    for check in (check_class_names, check_known_classes):
        with pytest.raises(CheckpointError, match=named):
            check(folder)


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b", "C:\\x", "a\0b", 5, ["a"]])
def test_module_outside_of_the_folder_is_refused(small_encoder: Path, tmp_path: Path, path: Any) -> None:
    folder = shutil.copytree(small_encoder, tmp_path / "model")
    write(folder / "modules.json", [{"path": path, "type": fullname(Pooling)}])
    with pytest.raises(CheckpointError, match="which is not inside of this folder"):
        check_class_names(folder)


def test_routers_inside_one_another_are_followed_to_an_end(tmp_path: Path) -> None:
    router, inner = fullname(Router), {"a": "sentence_transformers.models.Pooling"}
    write(tmp_path / "modules.json", [{"path": "", "type": router}])
    write(tmp_path / "router_config.json", {"types": {"query": router}})
    write(tmp_path / "query" / "router_config.json", {"types": inner})
    assert check_class_names(tmp_path).modules == {router, *inner.values()}
    write(tmp_path / "query" / "a" / "config.json", {"activation_function": "os.getcwd"})
    with pytest.raises(CheckpointError, match=r"os\.getcwd"):
        check_class_names(tmp_path)
    (tmp_path / "query" / "query").symlink_to(tmp_path)
    write(tmp_path / "query" / "router_config.json", {"types": {"query": router}})
    assert check_class_names(tmp_path).modules == {router}
    write(tmp_path / "modules.json", [{"path": str(number), "type": router} for number in range(100)])
    with pytest.raises(CheckpointError, match="more than 100 folders"):
        check_class_names(tmp_path)


@pytest.mark.parametrize("name", ["BertModel", "AutoModelForCausalLM", "pipeline", "Trainer", "__version__"])
@pytest.mark.parametrize("key", ["tokenizer_class", "processor_class", "image_processor_type"])
def test_class_of_a_tokenizer_is_one(small_encoder: Path, tmp_path: Path, key: str, name: str) -> None:
    folder = shutil.copytree(small_encoder, tmp_path / "model")
    change(folder / "tokenizer_config.json", **{key: name})
    with pytest.raises(CheckpointError, match=f"names {name}, which is no PreTrainedTokenizerBase or"):
        check_known_classes(folder)


def test_settings_of_any_size_and_depth_end_soon(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 900 + "[" + ",".join(["0"] * 500_000) + "]" + "}" * 900)
    started = time.monotonic()
    check_class_names(tmp_path)
    assert time.monotonic() - started < 5
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        check_class_names(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (16 * 1024 * 1024 + 1))
    with pytest.raises(CheckpointError, match="has 16,777,217 bytes; a file of settings has at most 16,777,216"):
        check_class_names(tmp_path)


def test_router_with_dense_layers_is_known(small_encoder: Path, tmp_path: Path) -> None:
    transformer = SentenceTransformer(str(small_encoder), device="cpu")
    width = int(transformer.get_embedding_dimension() or 0)
    routes = {"query": [Dense(width, 8, activation_function=torch.nn.GELU())], "document": [Dense(width, 8)]}
    modules = [*transformer, Router.for_query_document(routes["query"], routes["document"])]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "routed"))
    named = check_class_names(tmp_path / "routed").modules
    assert {fullname(Router), fullname(Dense), "torch.nn.modules.activation.GELU"} <= named
    check_known_classes(tmp_path / "routed")


def test_adapter_imports_nothing_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_causal_lm(tmp_path / "base", "qwen3", byte_level())
    model = AutoModelForCausalLM.from_pretrained(base)
    adapter = tmp_path / "adapter"
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(adapter)
    (tmp_path / "unknown_library.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    mapping = {"base_model_class": "A", "parent_library": "unknown_library"}
    change(adapter / "adapter_config.json", auto_mapping=mapping, base_model_name_or_path=str(base))
    load_causal_lm(adapter, CPU)
    assert not (tmp_path / "imported").exists()
    change(base / "config.json", attn_implementation="someone/kernel")  # the base of an adapter is checked, too
    with pytest.raises(CheckpointError, match="someone/kernel"):
        load_causal_lm(adapter, CPU)
