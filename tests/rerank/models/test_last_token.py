"""Sequences packed into one row give what each gives alone; architectures that cannot be packed say so."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTJConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)

from rerank.models.last_token import LastTokenReader
from rerank.models.loading import IdentifierHead

WORDS = 200
IDENTIFIERS = [3, 17, 40, 41, 99, 150]
#: Longer than the sliding windows, shorter, as long, and one position.
LENGTHS = (37, 12, 16, 1, 64)
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
GROUPED = SHAPE | {"num_key_value_heads": 2, "head_dim": 16}
WINDOWED = GROUPED | {"sliding_window": 16}
OF_GPT: dict[str, Any] = {"vocab_size": WORDS, "n_embd": 64, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
OF_OPT = SHAPE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}
ALIBI: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 64, "initializer_range": 0.2}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

PACKED: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**GROUPED),
    "mistral": MistralConfig(**WINDOWED),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen2 with a window in one layer": Qwen2Config(**WINDOWED, use_sliding_window=True, max_window_layers=2),
    "qwen3": Qwen3Config(**GROUPED),
    "gemma": GemmaConfig(**GROUPED),
    "gemma2": Gemma2Config(**WINDOWED, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gemma3": Gemma3TextConfig(**WINDOWED),
    "granite": GraniteConfig(**GROUPED, residual_multiplier=0.3, logits_scaling=2.0),
    "gpt-oss": GptOssConfig(**WINDOWED, num_local_experts=4, num_experts_per_tok=2),
    "bert": BertConfig(**SHAPE, is_decoder=True),
    "opt": OPTConfig(**OF_OPT),
    "gpt2": GPT2Config(**OF_GPT),
}
ALONE: dict[str, tuple[PretrainedConfig, str]] = {
    "bloom": (BloomConfig(**ALIBI, n_layer=3, n_head=4), "ran in 0 of its 3 layers"),
    "falcon": (FalconConfig(**ALIBI, num_hidden_layers=3, num_attention_heads=4), "ran in 0 of its 3 layers"),
    "gpt-j": (GPTJConfig(**OF_GPT, rotary_dim=8), "ran in 0 of its 3 layers"),
    "roberta": (RobertaConfig(**SHAPE, is_decoder=True), "are off by"),
    "bert that reads both ways": (BertConfig(**SHAPE, is_decoder=False), "are off by"),
    "llama with dynamic positions": (LlamaConfig(**GROUPED, rope_parameters=DYNAMIC), "dynamic position embeddings"),
}
#: Their last layer is written down in reader.py.
SHORT = {"llama", "mistral", "qwen2", "qwen2 with a window in one layer", "qwen3", "gemma"}


def model_of(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype)
    model.set_output_embeddings(IdentifierHead(model.get_output_embeddings(), IDENTIFIERS))
    return model.eval().requires_grad_(False)


def sequences() -> list[torch.Tensor]:
    return [torch.randint(WORDS, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


@torch.inference_mode()
def plainly(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """The last of all logits, as the model gives them when nobody has touched its attention."""
    return model(input_ids=ids[None], use_cache=False).logits[0, -1]


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_give_what_each_gives_alone(name: str) -> None:
    expected = torch.stack([plainly(model_of(PACKED[name]), ids) for ids in sequences()])
    reader = LastTokenReader(model_of(PACKED[name]))
    assert (reader.batching, reader.problem) == ("packed", "")
    assert expected.std() > 0.1, "a model without opinion proves nothing"
    torch.testing.assert_close(reader.read(sequences()), expected, atol=1e-5, rtol=0)
    alone = torch.cat([reader.read([ids]) for ids in sequences()])
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)
    assert reader.last_layer_short == (name in SHORT)


@pytest.mark.parametrize("name", ALONE)
def test_architecture_that_cannot_be_packed_is_read_one_by_one_and_says_so(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config, problem = ALONE[name]
    expected = torch.stack([plainly(model_of(config), ids) for ids in sequences()])
    with caplog.at_level(logging.WARNING, "rerank.models.last_token"):
        reader = LastTokenReader(model_of(config))
    assert reader.batching == "one_by_one"
    assert problem in reader.problem
    assert reader.problem in caplog.text
    torch.testing.assert_close(reader.read(sequences()), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [*PACKED, "falcon", "llama with dynamic positions"])
def test_reading_on_gives_what_reading_the_whole_gives(name: str) -> None:
    """Sequences of different lengths, and two of the same; some outgrow the sliding window on the way."""
    config, steps = PACKED.get(name) or ALONE[name][0], 4
    reader, untouched = LastTokenReader(model_of(config)), model_of(config)
    words = untouched.get_input_embeddings()
    whole = [torch.cat([ids, torch.arange(steps)]) for ids in [*sequences(), sequences()[0].flip(0)]]
    reading = reader.begin([words(ids[:-steps]) for ids in whole], steps)
    for step in range(steps):
        expected = torch.stack([plainly(untouched, ids[: len(ids) - steps + step]) for ids in whole])
        torch.testing.assert_close(reading.states, expected, atol=3e-5, rtol=0)
        reading.read(torch.stack([words(ids[len(ids) - steps + step]) for ids in whole]))
    torch.testing.assert_close(
        reading.states, torch.stack([plainly(untouched, ids) for ids in whole]), atol=3e-5, rtol=0
    )


class Spy(torch.nn.Module):
    """Notes how many positions the head is applied to."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head, self.positions = head, 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.positions += hidden.shape[:-1].numel()
        return self.head(hidden)


@pytest.mark.parametrize("config", [PACKED["llama"], PACKED["opt"], ALONE["bloom"][0]], ids=lambda c: c.model_type)
def test_head_is_applied_to_the_last_positions_only(config: PretrainedConfig) -> None:
    model = model_of(config)
    reader = LastTokenReader(model)
    spy = Spy(model.get_output_embeddings())
    model.set_output_embeddings(spy)
    reader.read(sequences())
    assert spy.positions == len(LENGTHS)


def test_last_layer_computes_its_mlp_for_what_is_read_only() -> None:
    model = model_of(PACKED["qwen3"])
    reader = LastTokenReader(model)
    layers = model.base_model.layers
    for layer in (layers[0], layers[-1]):
        layer.mlp = Spy(layer.mlp)
    reader.read(sequences())
    assert (layers[0].mlp.positions, layers[-1].mlp.positions) == (sum(LENGTHS), len(LENGTHS))


def test_transformer_without_a_head_gives_its_last_states() -> None:
    torch.manual_seed(0)
    transformer = AutoModel.from_config(copy.deepcopy(PACKED["llama"])).eval()
    vectors = [transformer.get_input_embeddings()(ids).detach() for ids in sequences()]
    with torch.inference_mode():
        expected = [transformer(inputs_embeds=own[None]).last_hidden_state[0, -1] for own in vectors]
    reader = LastTokenReader(transformer)
    assert reader.batching == "packed"
    torch.testing.assert_close(reader.read(vectors), torch.stack(expected), atol=1e-5, rtol=0)


def test_forward_that_knows_no_logits_to_keep_is_selected_from(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(PACKED["gpt2"])
    expected = torch.stack([plainly(model, ids) for ids in sequences()])
    whole = model.forward

    def without(input_ids: torch.Tensor, **options: Any) -> Any:
        return whole(input_ids=input_ids, **options)

    monkeypatch.setattr(model, "forward", without)
    torch.testing.assert_close(LastTokenReader(model).read(sequences()), expected, atol=1e-5, rtol=0)


def test_sliding_window_that_does_not_reach_attention_forbids_packing() -> None:
    """The probe's sequences are shorter than any window, so that nothing else would show it."""
    model = model_of(PACKED["gpt2"])
    model.config.sliding_window = 4096
    assert LastTokenReader(model).problem == "the sliding window reached 0 of 3 layers"


def test_layers_of_another_kind_forbid_packing() -> None:
    model = model_of(PACKED["llama"])
    model.config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    assert "chunked_attention" in LastTokenReader(model).problem


def test_last_layer_that_computes_otherwise_is_left_whole() -> None:
    """Granite scales its residuals; without the scale its layers are Llama's."""
    assert not LastTokenReader(model_of(PACKED["granite"])).last_layer_short
    assert LastTokenReader(model_of(GraniteConfig(**GROUPED))).last_layer_short


def test_bfloat16_is_packed_within_its_noise() -> None:
    expected = torch.stack([plainly(model_of(PACKED["llama"]), ids) for ids in sequences()])
    reader = LastTokenReader(model_of(PACKED["llama"], torch.bfloat16))
    assert reader.batching == "packed"
    found = reader.read(sequences())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.2 * expected.std().item(), rtol=0)


def test_autocast_computes_in_bfloat16_and_scores_in_float32() -> None:
    expected = torch.stack([plainly(model_of(PACKED["llama"]), ids) for ids in sequences()])
    reader = LastTokenReader(model_of(PACKED["llama"]), autocast=True)
    found = reader.read(sequences())
    assert (reader.batching, found.dtype) == ("packed", torch.float32)
    assert not torch.allclose(found, expected, atol=1e-5)
    torch.testing.assert_close(found, expected, atol=0.2 * expected.std().item(), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_packed_on_the_gpu_is_alone_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    expected = torch.stack([plainly(model_of(PACKED[name]), ids) for ids in sequences()])
    reader = LastTokenReader(model_of(PACKED[name], dtype).cuda())
    assert reader.batching == "packed"
    allowed = (1e-3 if dtype == torch.float32 else 0.2) * expected.std().item()
    found = reader.read([ids.cuda() for ids in sequences()])
    torch.testing.assert_close(found.cpu(), expected, atol=allowed, rtol=0)
