"""JinaBERT: the formula of its layers, and a folder in the published layout, which names code that is not run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.models.jina_bert import JinaBertConfig, JinaBertModel, alibi_slopes
from tests.json_files import change_json
from tests.pe_checkpoints import change_weights

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6}
CODE = "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"


def random_model(vocab_size: int) -> JinaBertModel:
    torch.manual_seed(0)
    return JinaBertModel(
        JinaBertConfig(vocab_size=vocab_size, type_vocab_size=2, initializer_range=0.2, **SIZES)
    ).eval()


def test_slopes_equal_alibi():
    assert alibi_slopes(8) == [2**-k for k in range(1, 9)]
    assert alibi_slopes(12) == [2**-k for k in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]


def formula(model: JinaBertModel, ids: list[int]) -> torch.Tensor:
    """(T, D) states of one text without padding, head by head."""
    w = model.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        scaled = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-12)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    distance = (torch.arange(len(ids))[:, None] - torch.arange(len(ids))).abs()
    for number in range(SIZES["num_hidden_layers"]):
        layer, width = f"encoder.layer.{number}", SIZES["hidden_size"] // SIZES["num_attention_heads"]
        q, k, v = (linear(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for head, slope in enumerate(alibi_slopes(SIZES["num_attention_heads"])):
            own = slice(head * width, (head + 1) * width)
            scores = q[:, own] @ k[:, own].T / width**0.5 - slope * distance
            heads.append(scores.softmax(-1) @ v[:, own])
        output = linear(torch.cat(heads, dim=-1), f"{layer}.attention.output.dense")
        x = norm(x + output, f"{layer}.attention.output.LayerNorm")
        gated = x @ w[f"{layer}.mlp.gated_layers.weight"].T
        gate, up = gated[:, : SIZES["intermediate_size"]], gated[:, SIZES["intermediate_size"] :]
        hidden = 0.5 * gate * (1 + torch.erf(gate / 2**0.5)) * up
        x = norm(x + linear(hidden, f"{layer}.mlp.wo"), f"{layer}.mlp.layernorm")
    return x


@torch.no_grad()
def test_states_equal_the_formula_also_next_to_padding():
    model, ids = random_model(50), [5, 7, 9, 11, 13]
    batch = torch.tensor([[*ids, 0, 0], range(20, 27)])
    states = model(batch, attention_mask=torch.tensor([[1] * 5 + [0] * 2, [1] * 7])).last_hidden_state
    torch.testing.assert_close(states[0, :5], formula(model, ids), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(states[1], formula(model, list(range(20, 27))), atol=1e-4, rtol=1e-4)


@pytest.fixture
def published(encoder: Encoder, tmp_path: Path) -> Path:
    """A folder in the layout of jina-embeddings-v2, with random weights and the default encoder's tokenizer."""
    folder = Path(shutil.copytree(encoder.folder, tmp_path / "jina"))
    model = random_model(30_522)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    settings = SIZES | {"model_type": "bert", "auto_map": {"AutoModel": CODE}, "vocab_size": 30_522}
    settings |= {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "architectures": ["JinaBertModel"]}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    change_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=SIZES["hidden_size"])
    return folder


@torch.no_grad()
def test_published_folder_is_read_without_its_code(published):
    jina = Encoder(str(published), "cpu")
    (vector,) = jina.encode_passages(["what causes the tides"])
    ids = jina.copy_tokenizer()("what causes the tides")["input_ids"]
    mean = formula(random_model(30_522), ids).mean(dim=0)
    torch.testing.assert_close(torch.from_numpy(vector), mean / mean.norm(), atol=1e-5, rtol=1e-4)
    assert Encoder(str(published), "cpu").encode_passages(["x"]).tolist() == jina.encode_passages(["x"]).tolist()


def test_another_variant_of_the_architecture_is_refused_by_its_weights(published):
    """jina-bert-v2-qk-post-norm normalises queries and keys, and names its MLP otherwise."""
    change_weights(published, {"encoder.layer.0.attention.self.layer_norm_q.weight": torch.ones(48)})
    with pytest.raises(CheckpointError, match=r"with unknown encoder\.layer\.0\.attention\.self\.layer_norm_q\.weight"):
        Encoder(str(published), "cpu")
