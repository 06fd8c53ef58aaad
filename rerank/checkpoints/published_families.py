"""Models whose folders name code of their publisher: converts config.json to a known class, or says what to do.

No code of a folder runs. A config.json is converted only if everything that the code would read in it is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rerank.checkpoints.settings_files import architecture_in, object_at
from rerank.errors import CheckpointError

_Settings: TypeAlias = Mapping[str, Any]

_INSTEAD = "serve another model of its publisher, such as BAAI/bge-reranker-v2-m3"
_BY_VLLM = "run it by vLLM (vllm serve FOLDER --runner pooling), and set `ranker: api` (docs/guide/deploy.md)"
#: Architecture that is neither a causal LM nor a cross-encoder → which model it is, and how to serve it, if at all.
_OTHER_ARCHITECTURES = {
    "JinaForRanking": "jina-reranker-v3 or -v3.5, a listwise model; write jina-reranker-v3:FOLDER or "
    "jina-reranker-v3.5:FOLDER",
    "HF_ColBERT": "a late-interaction model; write late-interaction:FOLDER",
    "LayerWiseMiniCPMForCausalLM": "bge-reranker-v2-minicpm-layerwise; write bge-reranker-v2-minicpm-layerwise:FOLDER",
    "CostWiseGemmaForCausalLM": f"bge-reranker-v2.5-gemma2-lightweight, whose layers transformers lacks; {_INSTEAD}",
    "JinaVLForRanking": f"jina-reranker-m0, which reads images; {_BY_VLLM}",
    "Qwen3VLForConditionalGeneration": f"Qwen3-VL-Reranker or its base, which reads images; {_BY_VLLM}",
    "SetEncoderModel": "a Set-Encoder of lightning-ir, whose layers transformers lacks; rank with lightning-ir",
    "MonoModel": "a cross-encoder of lightning-ir, whose head transformers lacks; rank with lightning-ir",
    "T5ForConditionalGeneration": "an encoder-decoder; write mono-t5:FOLDER if it is monoT5 or InRanker, or "
    "rank-t5:FOLDER if it is RankT5, or lit5-distill:FOLDER if it is LiT5-Distill. ListT5 and LiT5-Score run in their "
    "own programs only",
    "MT5ForConditionalGeneration": "an encoder-decoder; write mono-mt5:FOLDER if it is a monoT5 over mT5. Others are "
    "not served",
}


def other_architecture_hint(settings: _Settings) -> str:
    """Returns the name of a model in `_OTHER_ARCHITECTURES`, and how to serve it; empty for other architectures."""
    return _OTHER_ARCHITECTURES.get(architecture_in(settings), "")


def native_settings(settings: _Settings) -> dict[str, Any] | None:
    """Returns a config.json that names a class of transformers, or of `rerank.models`, instead of a publisher's code.

    Args:
        settings: config.json of a folder.

    Returns:
        The converted settings; None if config.json names no code, or code that is not known here.

    Raises:
        CheckpointError: a setting of a known family is missing or unknown.
    """
    code = object_at(settings, "auto_map")
    if settings.get("model_type") == "gte" and "rope_parameters" not in settings:
        return _gte(settings)  # even without `auto_map`: transformers would compute other positions
    for key, name, change in _FAMILIES:
        if str(code.get(key, "")).rpartition("--")[2].endswith(name):
            changed = change(settings)
            return {key: value for key, value in changed.items() if key != "auto_map"} if changed is not None else None
    return None


def _jina_bert(settings: _Settings) -> dict[str, Any] | None:
    """jina-embeddings-v2 and jina-reranker-v1: BERT with ALiBi and gated MLPs; see `rerank.models.jina_bert`."""
    is_known = (settings.get("position_embedding_type"), settings.get("feed_forward_type")) == ("alibi", "geglu")
    return {**settings, "model_type": "jina_bert_v2"} if is_known else None


def _jina_xlm_roberta(settings: _Settings) -> dict[str, Any] | None:
    """jina-reranker-v2: XLM-RoBERTa, whose weights have other names; see `rerank.models.native_folders`."""
    is_known = settings.get("position_embedding_type", "absolute") == "absolute"  # XLM-RoBERTa's default
    return {**settings, "model_type": "xlm-roberta"} if is_known else None


def _gte(settings: _Settings) -> dict[str, Any]:
    """gte-multilingual-reranker: transformers' Gte. Its rotary positions are scaled by the publisher's own "ntk".

    The frequencies are base^(-2i/d) with base = rope_theta · factor, divided by factor^(2/d), for d units of a head.

    Raises:
        CheckpointError: config.json states the positions in another way.
    """
    rope = settings.get("rope_parameters")
    if not isinstance(rope, dict):
        scaling, theta = object_at(settings, "rope_scaling"), settings.get("rope_theta")
        factor, width = scaling.get("factor"), settings.get("hidden_size", 0) / settings.get("num_attention_heads", 1)
        if scaling.get("type") != "ntk" or not isinstance(factor, int | float) or not isinstance(theta, int | float):
            raise CheckpointError(
                f"config.json states the positions by rope_theta {theta!r} and rope_scaling {scaling!r}, expected are "
                'a number and {"type": "ntk", "factor": a number}; download it again'
            )
        rope = {"rope_type": "linear", "factor": factor ** (2 / width), "rope_theta": float(theta * factor)}
    kept = {key: value for key, value in settings.items() if key not in ("rope_theta", "rope_scaling")}
    architecture = architecture_in(settings).replace("New", "Gte")
    return {**kept, "model_type": "gte", "architectures": [architecture], "rope_parameters": rope}


def _minicpm(settings: _Settings) -> dict[str, Any] | None:
    """bge-reranker-v2-minicpm-layerwise: Llama with factors for the inputs and the branches, as in Granite's class.

    The factor of a branch is scale_depth / sqrt(layers). `rerank.rankers.layer_heads` loads the heads for scores.
    """
    known = {"head_multi": True, "head_type": "simple", "rope_scaling": None}
    if any(settings.get(key) != value for key, value in known.items()):
        return None
    layers, width = settings["num_hidden_layers"], settings["hidden_size"] / settings["num_attention_heads"]
    factors = {"embedding_multiplier": settings["scale_emb"], "attention_multiplier": width**-0.5}
    factors["residual_multiplier"] = settings["scale_depth"] / layers**0.5
    return {**settings, **factors, "model_type": "granite", "architectures": ["GraniteForCausalLM"]}


_CLASSIFIER = "AutoModelForSequenceClassification"
#: Key of `auto_map`, end of the class that it names, and the function that converts config.json.
_FAMILIES: tuple[tuple[str, str, Callable[[_Settings], dict[str, Any] | None]], ...] = (
    ("AutoModel", "modeling_bert.JinaBertModel", _jina_bert),
    (_CLASSIFIER, "modeling_xlm_roberta.XLMRobertaForSequenceClassification", _jina_xlm_roberta),
    (_CLASSIFIER, "modeling.NewForSequenceClassification", _gte),
    ("AutoModelForCausalLM", "modeling_minicpm_reranker.LayerWiseMiniCPMForCausalLM", _minicpm),
    (_CLASSIFIER, "llama_bidirectional_model.LlamaBidirectionalForSequenceClassification", dict),
)
