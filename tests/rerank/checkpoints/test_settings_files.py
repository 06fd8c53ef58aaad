"""Names in the files of a folder: those that models need are known, and every other one is refused."""

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
from sentence_transformers.base.modules import Dense, Router
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SparseStaticEmbedding, SpladePooling
from sentence_transformers.util import fullname
from transformers import AutoModelForCausalLM

from rerank.checkpoints.settings_files import check_settings
from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.models.loading import load_causal_lm
from rerank.rankers.cross_encoder import PairScorer
from tests.causal_lms import write_causal_lm
from tests.cross_encoders import write_cross_encoder
from tests.eval.data import write
from tests.json_files import change_json
from tests.other_user import other_user, others_can_reach
from tests.small_encoder import write_small_encoder
from tests.small_tokenizers import byte_level

CPU = torch.device("cpu")
CROSS = "config_sentence_transformers.json"


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("cross-encoder") / "bert", "bert")


@pytest.fixture(scope="module")
def small_encoder(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    return write_small_encoder(tmp_path_factory.mktemp("encoder") / "small", encoder).folder


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90888945\n"


@pytest.mark.parametrize(
    "module", [Dense, LayerNorm, LogitScore, MLMTransformer, Pooling, Router, SparseStaticEmbedding, SpladePooling]
)
@pytest.mark.parametrize("place", ["", "sentence_transformers.models."])
def test_names_that_sentence_transformers_writes_are_known(tmp_path, module, place):
    name = f"{place}{module.__name__}" if place else fullname(module)
    write(tmp_path / "modules.json", [{"path": "1", "type": name}])
    assert check_settings(tmp_path) == [tmp_path]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of torch that a folder has had called, of those that would start processes."""
    names: list[str] = []
    monkeypatch.setattr(torch.utils.collect_env, "main", lambda: names.append("collect_env"))
    monkeypatch.setattr(torch.distributed.run, "main", lambda args=None: names.append("run"))
    return names


@pytest.mark.parametrize("function", ["torch.utils.collect_env.main", "torch.distributed.run.main"])
@pytest.mark.parametrize("place", [CROSS, "config.json", "earlier", "both of config.json"])
def test_cross_encoder_calls_no_function_as_its_activation(cross_encoder, tmp_path, called, function, place):
    folder = shutil.copytree(cross_encoder, tmp_path / "model")
    if place == CROSS:
        change_json(folder / place, activation_fn=function)
    else:
        (folder / CROSS).unlink()
        (folder / "modules.json").unlink()
        if place != "earlier":
            change_json(folder / "config.json", sentence_transformers={"activation_fn": function})
        if place != "config.json":
            change_json(folder / "config.json", sbert_ce_default_activation_function=function)
    with pytest.raises(CheckpointError, match=rf"needs code from its publisher \(.*{function}\)"):
        PairScorer(folder, "cpu")
    assert not called


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("options", ["model_args", "model_kwargs", "processor_kwargs", "tokenizer_args"])
def test_folder_cannot_have_its_weights_unpickled_with_code(small_encoder, tmp_path, options):
    """As options of the tokenizer they reach the weights if the tokenizer's class is a model's."""
    folder, made = shutil.copytree(small_encoder, tmp_path / "model"), tmp_path / "made"
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Payload(made)}, folder / "pytorch_model.bin")
    change_json(folder / "sentence_bert_config.json", **{options: {"weights_only": False, "use_safetensors": False}})
    with pytest.raises(CheckpointError, match="weights_only"):
        Encoder(str(folder), "cpu")
    assert not made.exists()


#: File → what it says, and the part of it that is refused.
REFUSED: list[tuple[str, Any, str]] = [
    ("modules.json", [{"path": "", "type": "torch.utils.collect_env.main"}], "torch.utils.collect_env.main"),
    ("modules.json", [{"path": ""}], "None"),
    ("modules.json", [{"path": "", "type": "sentence_transformers.util.http_get"}], "http_get"),
    ("modules.json", [{"path": "", "type": "sentence_transformers.models.CLIPModel"}], "CLIPModel"),
    *(
        ("modules.json", [{"path": path, "type": fullname(Pooling)}], "not inside of this folder")
        for path in ("/etc", "../other", "a/../../b", "C:\\x", "a\0b", 5, ["a"])
    ),
    *((CROSS, {"activation_fn": name}, "activation_fn|code") for name in ("relu", 5, ["torch.nn.ReLU"], {"a": 1}, "")),
    (CROSS, {"activation_fn": "torch.nn.Linear"}, "torch.nn.Linear"),
    ("config.json", {"types": {"a": "os.system"}}, "os.system"),
    ("router_config.json", {"types": {"a": "sentence_transformers.util.misc.fullname"}}, "fullname"),
    ("1_Pooling/config.json", {"activation_function": "torch.utils.collect_env.main"}, "collect_env"),
    ("config.json", {"text_config": {"attn_implementation": "someone/kernel"}}, "someone/kernel"),
    ("config.json", {"_attn_implementation": {"text_config": "someone/kernel"}}, "someone/kernel"),
    ("config.4.0.0.json", {"attn_implementation": "someone/kernel"}, "someone/kernel"),
    ("sentence_bert_config.json", {"model_kwargs": {"kernel_config": {}}}, "kernel_config"),
    ("sentence_bert_config.json", {"config_kwargs": {"_configuration_file": "other"}}, "_configuration_file"),
    ("sentence_bert_config.json", {"transformer_task": "retrieval"}, "retrieval"),
    ("sentence_bert_config.json", {"modality_config": {"text": {"method": "push_to_hub"}}}, "push_to_hub"),
    ("adapter_config.json", {"peft_type": "PROMPT_TUNING", "tokenizer_kwargs": {}}, "PROMPT_TUNING"),
    ("adapter_config.json", {"peft_type": "LORA", "megatron_core": "antigravity"}, "antigravity"),
    *(
        ("tokenizer_config.json", {key: name}, name)
        for key in ("tokenizer_class", "processor_class", "image_processor_type")
        for name in ("BertModel", "AutoModelForCausalLM", "pipeline", "Trainer", "__version__")
    ),
]


@pytest.mark.parametrize(("file", "settings", "named"), REFUSED)
def test_other_names_are_refused(small_encoder, tmp_path, file, settings, named):
    folder = shutil.copytree(small_encoder, tmp_path / "model")
    if isinstance(settings, dict):
        change_json(folder / file, **settings)
    else:
        write(folder / file, settings)
    with pytest.raises(CheckpointError, match=named):
        check_settings(folder)


def test_routers_inside_one_another_are_followed_to_an_end(tmp_path):
    router, inner = fullname(Router), {"a": "sentence_transformers.models.Pooling"}
    write(tmp_path / "modules.json", [{"path": "", "type": router}])
    write(tmp_path / "router_config.json", {"types": {"query": router}})
    write(tmp_path / "query" / "router_config.json", {"types": inner})
    write(tmp_path / "query" / "a" / "config.json", {"activation_function": "os.getcwd"})
    with pytest.raises(CheckpointError, match=r"os\.getcwd"):
        check_settings(tmp_path)
    (tmp_path / "query" / "query").symlink_to(tmp_path)
    write(tmp_path / "query" / "router_config.json", {"types": {"query": router}})
    check_settings(tmp_path)
    for number in range(100):
        (tmp_path / str(number)).mkdir()
    write(tmp_path / "modules.json", [{"path": str(number), "type": router} for number in range(100)])
    with pytest.raises(CheckpointError, match="more than 100 folders"):
        check_settings(tmp_path)


def test_settings_of_any_size_and_depth_end_soon(tmp_path):
    (tmp_path / "config.json").write_text('{"a":' * 900 + "[" + ",".join(["0"] * 500_000) + "]" + "}" * 900)
    started = time.process_time()
    check_settings(tmp_path)
    assert time.process_time() - started < 5
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        check_settings(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (16 * 1024 * 1024 + 1))
    with pytest.raises(CheckpointError, match="has 16,777,217 bytes; a file of settings has at most 16,777,216"):
        check_settings(tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "chat_template.jinja", "1_Pooling/notes", "extra.txt"])
def test_pipe_or_device_is_refused_and_not_read(small_encoder, tmp_path, file):
    folder = shutil.copytree(small_encoder, tmp_path / "model")
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (folder / file).unlink(missing_ok=True)
        make(folder / file)
        with pytest.raises(CheckpointError, match=f"{file} is a pipe or a device, not a file"):
            check_settings(folder)


def test_adapter_imports_nothing_that_it_names(tmp_path, monkeypatch):
    base = write_causal_lm(tmp_path / "base", "qwen3", byte_level())
    model = AutoModelForCausalLM.from_pretrained(base)
    adapter = tmp_path / "adapter"
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(adapter)
    (tmp_path / "unknown_library.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    mapping = {"base_model_class": "A", "parent_library": "unknown_library"}
    change_json(adapter / "adapter_config.json", auto_mapping=mapping, base_model_name_or_path=str(base))
    load_causal_lm(adapter, CPU)
    assert not (tmp_path / "imported").exists()
    change_json(base / "config.json", attn_implementation="someone/kernel")  # the base of an adapter is checked, too
    with pytest.raises(CheckpointError, match="someone/kernel"):
        load_causal_lm(adapter, CPU)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json"])
def test_pointer_of_git_lfs_is_named(small_encoder, tmp_path, file):
    folder = shutil.copytree(small_encoder, tmp_path / "model")
    (folder / file).write_text(LFS_POINTER)
    with pytest.raises(CheckpointError, match=f"{file} is a pointer of Git LFS.*git lfs pull"):
        check_settings(folder)


def test_file_that_may_not_be_read_and_a_link_that_leads_nowhere_are_named_with_their_way_out():
    """The way out was to copy the checkpoint again, also where a mode or a blob of the hub's cache was the reason."""
    with others_can_reach() as folder:
        write(folder / "config.json", {})
        weights = folder / "model.safetensors"
        (folder / "README.md").symlink_to("../blobs/0")
        assert check_settings(folder) == [folder]
        weights.touch(mode=0)
        with other_user(), pytest.raises(CheckpointError, match=rf"mode 000\): chmod a\+r {weights}$"):
            check_settings(folder)
        weights.unlink()
        weights.symlink_to("../blobs/1")
        with pytest.raises(CheckpointError, match=rf"{weights} is a link to ../blobs/1, which is not there; download"):
            check_settings(folder)


def test_byte_order_mark_is_named(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf{}")
    with pytest.raises(CheckpointError, match=r"config.json begins with a byte order mark, .* save it without one"):
        check_settings(tmp_path)
