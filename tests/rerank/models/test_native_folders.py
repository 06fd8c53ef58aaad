"""Folders that name code of their publisher, served by classes that are known: the scores of transformers' own."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GteConfig,
    GteForSequenceClassification,
    LlamaConfig,
    LlamaModel,
)

from rerank.config.named import named_model
from rerank.errors import CheckpointError, ConfigError
from rerank.models.jina_bert import JinaBertConfig, JinaBertForSequenceClassification
from rerank.profiles import load_profile
from rerank.rankers.cross_encoder import CrossEncoderRanker
from tests.cross_encoders import SIZES, drop_modules, pair_tokenizer, write_cross_encoder
from tests.fakes import ranking_of
from tests.pe_checkpoints import change_weights
from tests.rerank.models.test_jina_bert import SIZES as JINA_SIZES
from tests.rerank.models.test_jina_bert import formula
from tests.small_tokenizers import byte_level_numbers

QUERY = "how long does a flea live"
PASSAGES = ["A flea lives a year.", "moon", "Most fleas die within three months, and others do not.", "word " * 300]


def check(folder: Path, expected: list[float], profile: str | None = None) -> None:
    prompt = load_profile(profile).pair if profile else None
    ranker = CrossEncoderRanker(folder, "cpu", prompt=prompt)
    assert ranking_of(ranker, QUERY, PASSAGES).scores == pytest.approx(expected, abs=1e-5)
    assert [ranking_of(ranker, QUERY, [one]).scores[0] for one in PASSAGES] == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 1e-3


def plain_scores(folder: Path, model: Any = None) -> list[float]:
    """The sigmoid of a classifier's logit, by transformers, one pair after the other."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = (model or AutoModelForSequenceClassification.from_pretrained(folder)).eval()
    with torch.no_grad():
        inputs = [tokenizer([QUERY], [text], truncation=True, max_length=128, return_tensors="pt") for text in PASSAGES]
        return [float(model(**one).logits[0, 0].sigmoid()) for one in inputs]


def write_config(folder: Path, remove: tuple[str, ...] = (), **settings: object) -> None:
    path = folder / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in remove}
    path.write_text(json.dumps(kept | settings))


def published_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of XLM-RoBERTa by the names of jina-reranker-v2."""
    named = {}
    for name, tensor in weights.items():
        for ours, theirs in (
            (r"embeddings\.LayerNorm", "emb_ln"),
            (r"encoder\.layer\.(\d+)\.attention\.output\.dense", r"encoder.layers.\1.mixer.out_proj"),
            (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm", r"encoder.layers.\1.norm1"),
            (r"encoder\.layer\.(\d+)\.intermediate\.dense", r"encoder.layers.\1.mlp.fc1"),
            (r"encoder\.layer\.(\d+)\.output\.dense", r"encoder.layers.\1.mlp.fc2"),
            (r"encoder\.layer\.(\d+)\.output\.LayerNorm", r"encoder.layers.\1.norm2"),
        ):
            name = re.sub(ours, theirs, name)
        named[name] = tensor
    for packed in {name for name in named if ".attention.self.query." in name}:
        parts = [named.pop(packed.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        place = packed.replace("encoder.layer.", "encoder.layers.").replace("attention.self.query", "mixer.Wqkv")
        named[place] = torch.cat(parts)
    return named


def write_jina_v2(folder: Path) -> tuple[Path, list[float]]:
    write_cross_encoder(folder, "xlm-roberta")
    drop_modules(folder)
    expected = plain_scores(folder)
    save_file(published_names(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    code = "jinaai/x--modeling_xlm_roberta.XLMRobertaForSequenceClassification"
    write_config(folder, position_embedding_type="absolute", auto_map={"AutoModelForSequenceClassification": code})
    return folder, expected


def test_jina_reranker_v2_is_read_by_other_names_of_its_weights(tmp_path):
    folder, expected = write_jina_v2(tmp_path / "jina")
    assert "roberta.encoder.layers.0.mixer.Wqkv.weight" in load_file(folder / "model.safetensors")
    assert named_model(f"a={folder}")["ranker"] == "cross-encoder"
    check(folder, expected)


@pytest.mark.parametrize(
    ("added", "without", "what"), [({}, "layers.0.norm1.bias", "without"), ({"more": torch.zeros(1)}, "-", "unknown")]
)
def test_jina_reranker_v2_with_other_weights_is_refused(tmp_path, added, without, what):
    folder, _ = write_jina_v2(tmp_path / "jina")
    change_weights(folder, added, without)
    with pytest.raises(CheckpointError, match=f"weights .*{what}"):
        CrossEncoderRanker(folder, "cpu")


def test_rotary_variant_of_jinas_code_is_refused(tmp_path):
    folder, _ = write_jina_v2(tmp_path / "jina")
    write_config(folder, position_embedding_type="rotary")
    with pytest.raises(CheckpointError, match="needs code from its publisher"):
        CrossEncoderRanker(folder, "cpu")


def write_gte(folder: Path) -> tuple[Path, list[float]]:
    """The layout of gte-multilingual-reranker-base; its positions by the publisher's formula."""
    tokenizer = pair_tokenizer("[CLS] $A [SEP] $B [SEP]")
    torch.manual_seed(0)
    config = GteConfig(
        vocab_size=len(tokenizer), type_vocab_size=1, max_position_embeddings=128, num_labels=1, pad_token_id=0, **SIZES
    )
    model = GteForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rotary = [module for module in model.modules() if hasattr(module, "inv_freq")]
    assert rotary
    for module in rotary:
        width = 2 * module.inv_freq.numel()
        frequencies = 1 / (160_000 ** (torch.arange(0, width, 2) / width)) / 8 ** (2 / width)
        module.inv_freq.copy_(frequencies)
    expected = plain_scores(folder, model)
    code = "Alibaba-NLP/new-impl--modeling.NewForSequenceClassification"
    stated = {"architectures": ["NewForSequenceClassification"], "model_type": "new", "rope_theta": 20_000}
    stated |= {"auto_map": {"AutoModelForSequenceClassification": code}, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    write_config(folder, remove=("rope_parameters",), **stated)
    return folder, expected


def test_gte_multilingual_is_read_with_its_own_positions(tmp_path):
    check(*write_gte(tmp_path / "gte"))


def test_gte_whose_config_was_rewritten_by_hand_keeps_its_positions(tmp_path):
    folder, expected = write_gte(tmp_path / "gte")
    write_config(folder, remove=("auto_map",), model_type="gte", architectures=["GteForSequenceClassification"])
    check(folder, expected)


def test_gte_with_unknown_positions_is_refused(tmp_path):
    folder, _ = write_gte(tmp_path / "gte")
    write_config(folder, remove=("rope_scaling",))
    with pytest.raises(CheckpointError, match=r"states the positions by rope_theta 20000 and rope_scaling {}"):
        CrossEncoderRanker(folder, "cpu")


@torch.no_grad()
def test_jina_reranker_v1_scores_the_first_token(tmp_path):
    tokenizer = pair_tokenizer("[CLS] $A [SEP] $B [SEP]")
    torch.manual_seed(0)
    settings = {"type_vocab_size": 2, "initializer_range": 0.2, "num_labels": 1}
    model = JinaBertForSequenceClassification(
        JinaBertConfig(vocab_size=len(tokenizer), **settings, **JINA_SIZES)
    ).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code = {
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        "AutoModelForSequenceClassification": "x--modeling_bert.JinaBertForSequenceClassification",
    }
    stated = {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "auto_map": code}
    write_config(tmp_path, **stated)
    expected = []
    for passage in PASSAGES:
        ids = tokenizer(QUERY, passage, truncation=True, max_length=128)["input_ids"]
        pooled = (model.bert.pooler["dense"](formula(model.bert, ids)[0])).tanh()
        expected.append(float(model.classifier(pooled)[0].sigmoid()))
    check(tmp_path, expected)


def write_nemotron(folder: Path) -> tuple[Path, list[float]]:
    tokenizer = byte_level_numbers()
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=8192, num_labels=1, **SIZES
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    config.is_causal = False
    body = LlamaModel(config).eval()
    body.load_state_dict({name.removeprefix("model."): one for name, one in weights.items() if name[:6] == "model."})
    with torch.no_grad():
        texts = [f"question:{QUERY} \n \n passage:{passage}" for passage in PASSAGES]
        states = [body(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0] for text in texts]
        expected = [float(weights["score.weight"][0] @ state.mean(0) / 2) for state in states]
    code = "llama_bidirectional_model.LlamaBidirectionalForSequenceClassification"
    stated = {"architectures": [code.rpartition(".")[2]], "model_type": "llama_bidirec", "pooling": "avg"}
    write_config(folder, **stated, temperature=2.0, auto_map={"AutoModelForSequenceClassification": code})
    return folder, expected


def test_nemotron_scores_the_mean_of_states_that_see_all_tokens(tmp_path):
    folder, expected = write_nemotron(tmp_path / "llama-nemotron-rerank-1b-v2")
    assert named_model(f"a={folder}")["profile"] == "nemotron-rerank"
    check(folder, expected, "nemotron-rerank")


def test_nemotron_without_its_prompt_or_with_another_pooling_is_refused(tmp_path):
    folder, _ = write_nemotron(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"in which prompt .* \(nemotron-rerank\)"):
        CrossEncoderRanker(folder, "cpu")
    write_config(folder, pooling="cls")
    with pytest.raises(CheckpointError, match="pooling 'cls' is not supported"):
        CrossEncoderRanker(folder, "cpu", prompt=load_profile("nemotron-rerank").pair)


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("LayerWiseMiniCPMForCausalLM", "write bge-reranker-v2-minicpm-layerwise:"),
        ("CostWiseGemmaForCausalLM", "bge-reranker-v2.5-gemma2-lightweight, .* such as BAAI/bge-reranker-v2-m3"),
        ("JinaVLForRanking", "jina-reranker-m0, which reads images; run it by vLLM .* `ranker: api`"),
        ("SetEncoderModel", "Set-Encoder of lightning-ir"),
    ],
)
def test_known_family_that_is_not_served_is_named_with_the_way_out(tmp_path, architecture, words):
    folder = Path(shutil.copytree(write_cross_encoder(tmp_path / "a", "bert"), tmp_path / "b"))
    drop_modules(folder)
    write_config(folder, architectures=[architecture], model_type="x", auto_map={"AutoModel": "modeling.X"})
    with pytest.raises(ConfigError, match=words):
        named_model(f"a={folder}")
    with pytest.raises(CheckpointError, match=words):
        CrossEncoderRanker(folder, "cpu")
