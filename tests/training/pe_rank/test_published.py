"""The layout that the code of PE-Rank's authors reads: equal after a round trip, and complete for a causal LM."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.pe_rank.model import load_pe_base
from rerank_training.pe_rank.published import published_layout
from safetensors.torch import load_file

from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.tokenizer import load_tokenizer
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from tests.causal_lms import write_causal_lm
from tests.pe_checkpoints import SHORT, change_config, vector_window, write_adapted, write_aligned, write_published
from tests.small_tokenizers import metaspace


def saved(base: Path, encoder: Encoder, out: Path, published: bool = True) -> Path:
    """The base as training would write it, untrained."""
    (base.parent / "words.yaml").write_text(SHORT, encoding="utf-8")
    words = None if "template" in settings(base) else str(base.parent / "words.yaml")
    loaded = load_pe_base(base, encoder, words)
    if published:
        loaded.model.layout = published_layout(loaded, encoder, "rank")
    out.mkdir()
    loaded.model.save_pretrained(out)
    (out / "template.yaml").write_bytes(loaded.template.source)
    if not published:
        loaded.tokenizer.save_pretrained(out)
    return out


def choices(folder: Path, encoder: Encoder, template: Path | None = None) -> list[Any]:
    words = None if template is None else str(template)
    ranker = PERankRanker(folder, encoder, "cpu", "dynamic", words, precision="float32")
    return [(r.permutation, r.scores) for r in rank_windows(ranker, [vector_window(n, seed=n) for n in (2, 5, 9)])]


def settings(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def test_round_trip_of_the_published_layout_changes_nothing(encoder, tmp_path):
    base = write_published(tmp_path / "base", encoder)
    rope = settings(base)["rope_parameters"]
    stated = {key: value for key, value in settings(base).items() if key not in ("rope_parameters", "dtype")}
    stated |= {"rope_theta": rope["rope_theta"], "torch_dtype": "float32", "freeze_backbone": False}
    (base / "config.json").write_text(json.dumps(stated), encoding="utf-8")  # as transformers 4 writes it
    out = saved(base, encoder, tmp_path / "out")
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert settings(out) == stated
    for file in ("tokenizer.json", "tokenizer_config.json"):
        kept, was = (json.loads((folder / file).read_text(encoding="utf-8")) for folder in (out, base))
        assert {key: kept[key] for key in was} == was
    assert choices(out, encoder) == choices(base, encoder, tmp_path / "words.yaml")


@pytest.mark.parametrize("kind", ["causal LM", "aligned", "adapted", "ours"])
def test_any_base_becomes_a_complete_checkpoint_that_ranks_as_in_our_layout(encoder, tmp_path, kind):
    lm = base = write_causal_lm(tmp_path / "lm", "mistral", metaspace("instruct"))
    if kind != "causal LM":
        write = write_adapted if kind == "adapted" else write_aligned
        base = write(tmp_path / "base", lm, encoder)
    if kind == "ours":
        base = saved(base, encoder, tmp_path / "own layout", published=False)
    torch.manual_seed(0)  # of a new projector
    ours = saved(base, encoder, tmp_path / "ours", published=False)
    torch.manual_seed(0)
    out = saved(base, encoder, tmp_path / "out")
    assert choices(out, encoder) == choices(ours, encoder)
    weights, tokenizer, config = load_file(out / "model.safetensors"), load_tokenizer(out), settings(out)
    marks = tokenizer.convert_tokens_to_ids(["<PLACEHOLDER>", "<RANK>"])
    assert marks == [len(metaspace("instruct")), len(metaspace("instruct")) + 1]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert len(weights[name]) == config["vocab_size"] == marks[1] + 1
    assert json.loads((out / "added_tokens.json").read_text())["<RANK>"] == marks[1]
    of_encoder = {name.removeprefix("model.encoder.encoder.") for name in weights if "model.encoder." in name}
    assert of_encoder == encoder.transformer.state_dict().keys()
    assert {"model.projector.0.weight", "model.projector.2.bias"} <= weights.keys()
    assert not [name for name in weights if name.startswith("projector.")]
    expected = {"model_type": "embed_mistral", "embedding_size": 384, "projector_type": "mlp2x_gelu"}
    expected |= {"freeze_backbone": False, "torch_dtype": "float32", "encoder_name": encoder.id.name}
    assert expected.items() <= config.items()
    assert config["rope_theta"] == 10000.0
    assert not {"template", "encoder_sha256", "rope_parameters", "dtype"} & config.keys()


def test_aligned_projector_is_written_alone_and_read_back(encoder, tmp_path):
    base = write_causal_lm(tmp_path / "lm", "mistral", metaspace("instruct"))
    loaded = load_pe_base(base, encoder, None)
    loaded.model.layout = published_layout(loaded, encoder, "align")
    (out := tmp_path / "out").mkdir()
    loaded.model.save_pretrained(out)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "projector.bin"]
    expected = {"freeze_backbone": True, "_name_or_path": str(base), "architectures": ["EmbedMistralForCausalLM"]}
    assert expected.items() <= settings(out).items()
    again = load_pe_base(out, encoder, None)
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze_backbone": False}, r"its language model was trained, too .*give a folder checkpoint-N"),
        ({"_name_or_path": "./moved"}, r"there is no folder \./moved; write its folder as _name_or_path into"),
        ({"_name_or_path": None}, "names no _name_or_path, the language model of the projector; add its folder"),
        ({"encoder_name": "other/encoder"}, "was trained for encoder other/encoder"),
    ],
)
def test_projector_without_its_language_model_is_refused(encoder, tmp_path, changes, message):
    lm = write_causal_lm(tmp_path / "lm", "mistral", metaspace("instruct"))
    aligned = write_aligned(tmp_path / "aligned", lm, encoder)
    change_config(aligned, **changes)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        load_pe_base(aligned, encoder, None)


def test_model_that_their_code_does_not_have_is_refused(encoder, checkpoint, tmp_path):
    qwen = load_pe_base(write_causal_lm(tmp_path / "lm", "qwen3", metaspace("instruct")), encoder, None)
    with pytest.raises(ConfigError, match="reads llama and mistral, not qwen3; leave --layout out"):
        published_layout(qwen, encoder, "rank")
    with pytest.raises(ConfigError, match="reads the encoder's token embeddings, or has a projector of type residual"):
        published_layout(load_pe_base(checkpoint, encoder, None), encoder, "rank")


def test_decoding_that_their_code_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="is trained by --decoding dynamic"):
        PERankArguments(lists="lists", base="base", layout="published")
    assert PERankArguments(lists="lists", base="base", layout="published", objective="align").decoding == "one_step"
