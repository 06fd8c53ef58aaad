"""Damaged folders of every kind of model: each is refused with CheckpointError or ConfigError, and soon."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from rerank.config import CrossEncoderModel, FirstModel, IdentityModel, ModelConfig, PERankModel, ServiceConfig
from rerank.errors import CheckpointError, ConfigError, SelfTestFailed
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.names import SERVICE
from rerank.ports.health import health_statuses
from rerank.reranking.load_models import ModelLoader, _self_test, load_ranker
from rerank.reranking.registry import load_models
from rerank.reranking.reranker import AsyncReranker
from rerank.types import OnFailure, Passage, RankOptions
from tests.causal_lms import write_causal_lm
from tests.cross_encoders import write_cross_encoder
from tests.damaged_folders import Damage, damaged_json, of_weights, pickled, removed, setting, wrong_sizes, wrong_values
from tests.pe_checkpoints import write_published
from tests.small_encoder import write_small_encoder
from tests.small_tokenizers import byte_level

_WEIGHTS = "model.safetensors"
_TOKENIZER = {"model_max_length": ("a", -1, []), "tokenizer_class": (5, "BertModel", ["a"])}


class Payload:
    """Ends the process when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (1,)


def of_transformer() -> Iterator[tuple[str, Damage]]:
    yield from damaged_json("config.json")
    yield from wrong_sizes("config.json")
    yield "config.json removed", removed("config.json")
    yield from of_weights(_WEIGHTS)
    yield "a payload", pickled("pytorch_model.bin", {"weight": Payload()})
    yield "a number", pickled("pytorch_model.bin", 5)
    yield from wrong_values("tokenizer_config.json", _TOKENIZER)


def of_sentence_transformer() -> Iterator[tuple[str, Damage]]:
    yield from of_transformer()
    for file in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        yield from damaged_json(file)
    lengths = (-1, 0, 10**30, "a", [], float("inf"))
    yield from wrong_values("sentence_bert_config.json", {"max_seq_length": lengths, "model_args": (5, ["a"])})


def of_encoder() -> Iterator[tuple[str, Damage]]:
    yield from of_sentence_transformer()
    yield from damaged_json("1_Pooling/config.json")
    yield "1_Pooling/config.json removed", removed("1_Pooling/config.json")
    widths = {"word_embedding_dimension": (0, -1, 10**12, "a", [])}
    yield from wrong_values("1_Pooling/config.json", {**widths, "pooling_mode_mean_tokens": ("a",)})
    yield from wrong_values("config_sentence_transformers.json", {"prompts": (5,), "default_prompt_name": ("gone", [])})


def of_cross_encoder() -> Iterator[tuple[str, Damage]]:
    yield from of_sentence_transformer()
    yield from wrong_values("config_sentence_transformers.json", {"activation_fn": (5, [], "torch.nn.Linear")})
    yield from wrong_values("config.json", {"id2label": (5, [1], {})})


def of_causal_lm() -> Iterator[tuple[str, Damage]]:
    yield from of_transformer()
    yield from damaged_json("tokenizer.json")
    yield "tokenizer.json removed", removed("tokenizer.json")


def of_adapter() -> Iterator[tuple[str, Damage]]:
    file = "adapter_config.json"
    yield from damaged_json(file)
    yield from of_weights("adapter_model.safetensors")
    ranks = (0, -1, 10**9, 10**30, "a", [], 7, float("inf"))
    yield from wrong_values(file, {"r": ranks, "base_model_name_or_path": (5, None, "", "/gone")})
    yield from wrong_values(file, {"peft_type": (5, "nothing", None), "target_modules": (5, ["nothing"], [])})
    yield from wrong_values(file, {"lora_alpha": ("a", []), "rank_pattern": (5, {"q_proj": 10**9})})


def of_pe_rank() -> Iterator[tuple[str, Damage]]:
    yield from of_causal_lm()
    kinds = (5, "nothing", "linear", "mlp9x_gelu")
    wrong = {"projector_type": kinds, "encoder_name": (5, None), "template": (5, "gone")}
    yield from wrong_values("config.json", wrong)


#: Kind → its damages, and the settings that load the folder; none for an encoder.
KINDS: dict[str, tuple[Callable[[], Iterator[tuple[str, Damage]]], Callable[[Path], ModelConfig] | None]] = {
    "encoder": (of_encoder, None),
    "cross-encoder": (of_cross_encoder, lambda path: CrossEncoderModel(name="m", ranker="cross-encoder", path=path)),
    "first": (of_causal_lm, lambda path: FirstModel(name="m", ranker="first", path=path)),
    "adapter": (of_adapter, lambda path: FirstModel(name="m", ranker="first", path=path)),
    "pe-rank": (of_pe_rank, lambda path: PERankModel(name="m", ranker="pe-rank", path=path)),
}
#: What a kind of model does not read, or reads the same, so that the model is whole: part of the name of a damage.
HARMLESS = {
    # The length is from sentence_bert_config.json, and the tokenizer's does not count.
    "encoder": (
        *("architectures", "num_labels", "quantization_config {", "model_max_length", "_mean_tokens"),
        *("1" + 30 * "0",),
    ),
    # A length beyond the table of positions is cut to it.
    "cross-encoder": ("quantization_config {", "max_seq_length 1" + 30 * "0", "max_seq_length inf"),
    "first": ("architectures", "quantization_config {", "auto_map", "num_labels"),
    "adapter": (),
    # Its length is from config.json.
    "pe-rank": ("architectures", "quantization_config {", "auto_map", "num_labels", "model_max_length"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder, sparse_encoder: SparseEncoder) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_small_encoder(root / "encoder", encoder)
    write_cross_encoder(root / "cross-encoder", "bert")
    lm = write_causal_lm(root / "first", "qwen3", byte_level())
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(lm), LoraConfig(target_modules=["q_proj"]))
    adapted.save_pretrained(root / "adapter")
    write_published(root / "pe-rank", encoder)
    return root


def load(kind: str, folder: Path, encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    settings = KINDS[kind][1]
    if settings is None:
        Encoder(str(folder), "cpu")
    else:
        model = settings(folder)
        _self_test(load_ranker(model, encoder, "cpu", lambda: sparse_encoder), model, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_folder_loads(folders, encoder, sparse_encoder, kind):
    load(kind, folders / kind, encoder, sparse_encoder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_folder_is_refused_with_its_name(folders, encoder, sparse_encoder, tmp_path, kind):
    damages = dict(KINDS[kind][0]())
    assert len(damages) > 30
    outcomes: dict[str, str] = {}
    for number, (name, damage) in enumerate(damages.items()):
        folder = shutil.copytree(folders / kind, tmp_path / str(number))
        damage(folder)
        try:
            load(kind, folder, encoder, sparse_encoder)
            outcomes[name] = "loads"
        except (CheckpointError, ConfigError) as error:
            outcomes[name] = "" if str(folder) in str(error) or "/gone" in str(error) else f"names no folder: {error}"
        except SelfTestFailed as error:
            is_told = "NaN" in name and "its scores are not finite: weights with NaN, or too large" in str(error)
            outcomes[name] = "" if is_told else f"fails the self-test only: {error}"
        except BaseException as error:
            outcomes[name] = repr(error)
        shutil.rmtree(folder)
    problems = {name: outcome for name, outcome in outcomes.items() if outcome}
    harmless = {name for name in problems if any(part in name for part in HARMLESS[kind])}
    assert {name: problems[name] for name in problems.keys() - harmless} == {}
    assert {problems[name] for name in harmless} <= {"loads"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_setting_of_another_type_is_refused_or_without_effect(folders, encoder, sparse_encoder, tmp_path, kind):
    file = "adapter_config.json" if kind == "adapter" else "config.json"
    other: dict[type, object] = {int: "x", float: "x", str: 5, bool: [], list: 5, dict: ["x"], type(None): ["x"]}
    settings = json.loads((folders / kind / file).read_text()) | {"auto_map": {}, "id2label": {}, "num_labels": 1}
    problems: dict[str, str] = {}
    for key, value in settings.items():
        folder = shutil.copytree(folders / kind, tmp_path / key)
        setting(file, key, other[type(value)])(folder)
        try:
            load(kind, folder, encoder, sparse_encoder)
        except (CheckpointError, ConfigError, SelfTestFailed):
            pass
        except BaseException as error:
            problems[key] = repr(error)
        shutil.rmtree(folder)
    assert problems == {}


@pytest.mark.parametrize("default", ["whole", "damaged"])
async def test_service_is_ready_unless_its_default_model_is_damaged(folders, encoder, tmp_path, default):
    folder = shutil.copytree(folders / "first", tmp_path / "damaged")
    pickled("pytorch_model.bin", {"weight": Payload()})(folder)
    models = [FirstModel(name="damaged", ranker="first", path=folder), IdentityModel(name="whole", ranker="identity")]
    models.sort(key=lambda model: model.name != default)
    registry = load_models(models, ModelLoader(encoder, "cpu"))
    statuses = health_statuses(registry.describe())
    serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
    assert statuses[""] == (serving if default == "whole" else not_serving)
    assert (statuses[f"{SERVICE}/whole"], statuses[f"{SERVICE}/damaged"]) == (serving, not_serving)
    config = ServiceConfig(models=tuple(models))
    candidates = [Passage("a", "the moon"), Passage("b", "bread")]
    async with AsyncReranker(config, encoder, None, registry) as reranker:
        ranking = await reranker.rerank("tides", candidates, RankOptions(model="whole"))
        assert [result.passage.doc_id for result in ranking.ranked] == ["a", "b"]
        instead = RankOptions(model="damaged", on_failure=OnFailure.FIRST_STAGE)
        ranking = await reranker.rerank("tides", candidates, instead)
        assert ranking.trace.failure is CheckpointError
        with pytest.raises(CheckpointError, match="model 'damaged' is not served"):
            await reranker.rerank("tides", candidates, RankOptions(model="damaged"))
