"""Adapters: each weight has its place in the base, or the adapter is refused with the weight's name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModelForCausalLM

from rerank.config import GenerationModel, PERankModel
from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.models.loading import load_causal_lm
from rerank.rankers.cross_encoder import PairScorer
from rerank.reranking.load_models import load_ranker
from tests.causal_lms import SIZES, write_causal_lm
from tests.cross_encoders import write_cross_encoder
from tests.damaged_folders import Damage, Tensors, setting, tensors_changed
from tests.small_encoder import write_small_encoder
from tests.small_tokenizers import byte_level

CPU = torch.device("cpu")
FILE, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LORA: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}


def write_adapter(folder: Path, base: Path, served_on: Path | None = None, **settings: Any) -> Path:
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(**LORA | settings))
    model.save_pretrained(folder)
    setting(FILE, "base_model_name_or_path", str(served_on or base))(folder)
    return folder


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Causal LMs by their number of layers."""
    found, root = {}, tmp_path_factory.mktemp("bases")
    with pytest.MonkeyPatch.context() as patch:
        for layers in (2, 4):
            patch.setitem(SIZES, "num_hidden_layers", layers)
            found[layers] = write_causal_lm(root / str(layers), "qwen3", byte_level())
    return found


def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=torch.arange(20)[None]).logits.detach()


@pytest.mark.parametrize(
    "settings",
    [
        {"task_type": "CAUSAL_LM"},
        {"use_dora": True},
        {"modules_to_save": ["lm_head", "norm"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"trainable_token_indices": [3, 5]},
    ],
)
def test_merged_adapter_computes_as_peft_does(bases, tmp_path, settings):
    adapter = write_adapter(tmp_path / "adapter", bases[2], **settings)
    tensors_changed(WEIGHTS, lambda tensors: {name: tensor + 0.1 for name, tensor in tensors.items()})(adapter)
    base = AutoModelForCausalLM.from_pretrained(bases[2])
    expected = logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(bases[2]), adapter))
    assert not torch.allclose(expected, logits(base), atol=1e-2)
    torch.testing.assert_close(logits(load_causal_lm(adapter, CPU).model), expected, atol=1e-4, rtol=1e-4)


def with_more_tokens(adapter: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([f"<new{number}>" for number in range(9)])
    tokenizer.save_pretrained(adapter)


#: Layers of the base that an adapter was trained on and of its base now, what it was trained with, what is changed
#: then, and what the error says.
UNFIT: list[tuple[int, int, dict[str, Any], Damage | None, str]] = [
    (4, 2, {}, None, r"has weights for layers that its base lacks: model\.layers\.2\.self_attn\.q_proj\.lora_A"),
    (2, 4, {}, None, r"lacks the weights model\.layers\.2\.self_attn\.q_proj\.lora_A.* and 3 more"),
    (2, 2, {}, setting(FILE, "task_type", "SEQ_CLS"), r"for the task SEQ_CLS, and this ranker serves CAUSAL_LM"),
    (
        *(2, 2, {"modules_to_save": ["lm_head"]}),
        tensors_changed(WEIGHTS, lambda tensors: {n: t for n, t in tensors.items() if "lm_head" not in n}),
        r"lacks the weights lm_head\.weight",
    ),
    (
        *(2, 2, {}, setting(FILE, "modules_to_save", ["lm_head", "pooler"])),
        r"has modules_to_save that its base lacks: pooler; set",
    ),
    (2, 2, {}, with_more_tokens, r"has a tokenizer of \d+ tokens, and its base embeddings of \d+"),
    (
        *(2, 2, {"modules_to_save": ["embed_tokens"]}),
        tensors_changed(WEIGHTS, lambda ts: {n: torch.zeros(7, 64) if "embed_tokens" in n else ts[n] for n in ts}),
        r"has weights of other shapes than its base: .*embed_tokens",
    ),
]


@pytest.mark.parametrize(("trained", "served", "settings", "damage", "problem"), UNFIT)
def test_adapter_is_never_served_with_part_of_its_weights(bases, tmp_path, trained, served, settings, damage, problem):
    adapter = write_adapter(tmp_path / "adapter", bases[trained], served_on=bases[served], **settings)
    if damage:
        damage(adapter)
    with pytest.raises(CheckpointError, match=problem) as caught:
        load_causal_lm(adapter, CPU)
    assert str(adapter) in str(caught.value)


def test_rankers_of_causal_lms_and_vectors_name_the_adapter(bases, tmp_path, encoder):
    adapter = write_adapter(tmp_path / "adapter", bases[4], served_on=bases[2])
    generation = GenerationModel(name="m", ranker="generation", path=adapter)
    with pytest.raises(CheckpointError, match="has weights for layers that its base lacks"):
        load_ranker(generation, encoder, "cpu")
    with pytest.raises(CheckpointError, match=r"is an adapter without the config.json of a PE-Rank checkpoint"):
        load_ranker(PERankModel(name="m", ranker="pe-rank", path=adapter), encoder, "cpu")


def adapt(model: Any, folder: Path, **settings: Any) -> Path:
    model.add_adapter(LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False, **settings))
    model.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("settings", [{"task_type": "SEQ_CLS"}, {}, {"modules_to_save": ["classifier"]}])
def test_adapter_of_a_cross_encoder_scores_as_the_library_does(tmp_path, settings):
    base = write_cross_encoder(tmp_path / "base", "bert")
    adapter = adapt(CrossEncoder(str(base), device="cpu"), tmp_path / "adapter", **settings)
    pairs = [("fleas", "a flea lives a year"), ("fleas", "glaciers")]
    scorer = PairScorer(adapter, "cpu")
    scores = scorer.scores(scorer.render("fleas", [passage for _, passage in pairs]))
    np.testing.assert_allclose(scores, CrossEncoder(str(adapter), device="cpu").predict(pairs), atol=1e-5)
    assert not np.allclose(scores, CrossEncoder(str(base), device="cpu").predict(pairs), atol=1e-5)
    assert scorer.revision != PairScorer(base, "cpu").revision


def with_another_layer(tensors: Tensors) -> Tensors:
    return tensors | {name.replace("layer.0", "layer.7"): tensor.clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (tensors_changed(WEIGHTS, with_another_layer), "for layers that its base lacks"),
        (tensors_changed(WEIGHTS, lambda tensors: dict(list(tensors.items())[1:])), "lacks the weights"),
        (setting(FILE, "task_type", "QUESTION_ANS"), "task QUESTION_ANS"),
    ],
    ids=["more layers", "lost weights", "other task"],
)
@pytest.mark.parametrize("kind", ["cross-encoder", "encoder"])
def test_unfit_adapter_of_an_encoder_or_cross_encoder_is_refused(tmp_path, encoder, kind, damage, problem):
    if kind == "encoder":
        base = write_small_encoder(tmp_path / "base", encoder).folder
        adapter = adapt(SentenceTransformer(str(base), device="cpu"), tmp_path / "adapter")
    else:
        base = write_cross_encoder(tmp_path / "base", "bert")
        adapter = adapt(CrossEncoder(str(base), device="cpu"), tmp_path / "adapter")
    damage(adapter)
    with pytest.raises(CheckpointError, match=problem):
        Encoder(str(adapter), "cpu") if kind == "encoder" else PairScorer(adapter, "cpu")


def test_adapter_of_an_encoder_encodes_as_the_library_does(tmp_path, encoder):
    base = write_small_encoder(tmp_path / "base", encoder).folder
    adapter = adapt(SentenceTransformer(str(base), device="cpu"), tmp_path / "adapter")
    texts = ["a flea lives a year", "glaciers flow"]
    expected = SentenceTransformer(str(adapter), device="cpu").encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(Encoder(str(adapter), "cpu").encode_passages(texts), expected, atol=1e-5)
