"""PE-Rank checkpoints in the published layout: loading, and errors of checkpoints that do not fit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.projector import load_projector
from rerank.prompting.templates import load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import ScoreKind
from tests.causal_lms import write_causal_lm
from tests.fakes import ranking_of
from tests.json_files import change_json
from tests.pe_checkpoints import (
    SHORT,
    change_config,
    change_weights,
    published_settings,
    random_projector,
    vector_window,
    write_adapted,
    write_aligned,
    write_published,
)
from tests.small_tokenizers import metaspace


@pytest.fixture
def folder(tmp_path: Path, encoder: Encoder) -> Path:
    return write_published(tmp_path / "published", encoder)


def scores(folder: Path, encoder: Encoder) -> tuple[float, ...]:
    return rank_windows(PERankRanker(folder, encoder, device="cpu"), [vector_window(5, seed=1)])[0].scores


def to_bin(folder: Path) -> None:
    """Moves the projector into projector.bin, with the names of the published training code."""
    weights = load_file(folder / "model.safetensors")
    torch.save({name: weights[name] for name in weights if "projector" in name}, folder / "projector.bin")
    change_weights(folder, {}, without="projector")


def to_shards(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(weights)
    for part in (0, 1):
        shard = {name: weights[name] for name in names[part::2]}
        save_file(shard, folder / f"model-0000{1 + part}-of-00002.safetensors")


@pytest.mark.parametrize("architecture", ["mistral", "llama"])
def test_published_checkpoint_ranks_texts(tmp_path, encoder, architecture):
    ranker = PERankRanker(write_published(tmp_path / "it", encoder, architecture), encoder, device="cpu")
    assert sorted(ranking_of(ranker, "what causes the tides", ["the moon", "bread"]).permutation) == [0, 1]
    assert ranker.info.template_sha256 == load_template("pe_rank_text").sha256


def to_torch_file(folder: Path) -> None:
    """All weights in pytorch_model.bin."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("change", [to_bin, to_shards, to_torch_file])
def test_file_of_the_weights_does_not_change_the_scores(folder, encoder, change):
    before = scores(folder, encoder)
    change(folder)
    assert scores(folder, encoder) == before


@pytest.mark.parametrize(
    ("kind", "layer", "width", "without"), [("linear", "", 384, "projector"), ("mlp3x_gelu", "4.", 64, "no such name")]
)
def test_projector_of_another_type_is_read(folder, encoder, kind, layer, width, without):
    """Seeded, because five passages have the same order by chance once in 120 draws."""
    before = scores(folder, encoder)
    change_config(folder, projector_type=kind)
    weight = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
    added = {f"model.projector.{layer}weight": weight, f"model.projector.{layer}bias": torch.zeros(64)}
    change_weights(folder, added, without)
    assert scores(folder, encoder) != before


def test_float16_weights_are_read_and_a_missing_pooling_is_not_compared(folder, encoder):
    before = scores(folder, encoder)
    change_config(folder, encoder_pooling=None)
    assert scores(folder, encoder) == before
    change_weights(folder, {n: t.half() for n, t in load_file(folder / "model.safetensors").items()})
    assert scores(folder, encoder) == pytest.approx(before, abs=0.2)


def test_identity_projector_needs_no_weights_and_an_encoder_of_the_models_width(folder, encoder):
    change_config(folder, projector_type="identity")
    change_weights(folder, {}, without="projector")
    with pytest.raises(CheckpointError, match="vectors have width 384 and the model reads 64; use the encoder"):
        scores(folder, encoder)
    assert load_projector("identity", {}, 64, 64)(torch.ones(2, 64)).sum() == 128


def test_published_checkpoint_decodes_dynamically_and_warns_of_another_prompt(folder, encoder):
    info = PERankRanker(folder, encoder, device="cpu").info
    assert info.score_kind is ScoreKind.RANK
    assert "published states no prompt, so it is read with the words of template pe_rank_text" in info.warning
    (folder.parent / "own.yaml").write_text(SHORT, encoding="utf-8")
    assert PERankRanker(folder, encoder, device="cpu", template=str(folder.parent / "own.yaml")).info.warning == ""


def test_template_of_the_checkpoint_has_priority_over_the_option(tmp_path, encoder):
    folder = write_published(tmp_path / "named", encoder, template=SHORT)
    own = load_template(str(folder / "prompt.yaml")).sha256
    assert PERankRanker(folder, encoder, device="cpu").info.template_sha256 == own
    message = r"template 'pe_rank' was requested, but .* was trained with 'prompt.yaml'; leave"
    with pytest.raises(ConfigError, match=message):
        PERankRanker(folder, encoder, device="cpu", template="pe_rank")


def without_a_shard(folder: Path) -> None:
    to_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def config(**settings: object) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **settings)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (config(projector_type="linear"), r"published: the projector does not fit its projector_type 'linear'"),
        (
            config(encoder_name="other/encoder"),
            r"for encoder other/encoder \(sha256 None\), but this service loads sent",
        ),
        (config(encoder_sha256="0" * 64), "use that encoder, in a folder of its name, or another checkpoint"),
        (
            config(encoder_pooling="last_token"),
            r"trained on vectors by last_token pooling \(encoder_pooling\), but sent.* is loaded with mean; use an",
        ),
        (
            lambda folder: change_weights(folder, {}, without="projector"),
            r"holds no projector: its weights have no tensors projector\.\*, and there is no proj",
        ),
        (without_a_shard, r"holds model-00001-of-00002\.safetensors alone; download"),
    ],
)
def test_folder_that_does_not_fit_or_is_damaged_is_rejected(folder, encoder, damage, message):
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        PERankRanker(folder, encoder, device="cpu")


# --- what the training code of PE-Rank's authors leaves


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_causal_lm(tmp_path / "base", "mistral", metaspace("instruct"))


def test_lora_layout_ranks_as_the_checkpoint_that_it_is_merged_into(base, tmp_path, encoder):
    adapted = write_adapted(tmp_path / "adapted", base, encoder)
    model = AutoModelForCausalLM.from_pretrained(base)
    whole = tmp_path / "whole"
    PeftModel.from_pretrained(model, adapted).merge_and_unload().save_pretrained(whole)
    metaspace("instruct").save_pretrained(whole)
    change_config(whole, **published_settings(encoder), model_type="embed_mistral")
    projector = random_projector(encoder.id.dimension, model.config.hidden_size)
    change_weights(whole, {f"model.projector.{name}": tensor for name, tensor in projector.items()})
    assert ranks(adapted, encoder) == ranks(whole, encoder)
    merged = load_file(whole / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert not torch.equal(merged, load_file(base / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"])


def ranks(folder: Path, encoder: Encoder) -> list[tuple[float, ...]]:
    """Scores of several windows in one step, with its precision."""
    ranker = PERankRanker(folder, encoder, device="cpu", decoding="one_step", precision="float32")
    return [rank_windows(ranker, [vector_window(n, seed=n)])[0].scores for n in (2, 5, 9)]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            ["projector.bin", "non_lora_trainables.bin"],
            "neither projector.bin nor non_lora_.*; give the folder of the fi",
        ),
        (["config.json"], r"an adapter without the config\.json of a PE-Rank checkpoint; give the folder of the fi"),
        (["adapter_model.safetensors"], r"has no adapter_model\.safetensors or adapter_model\.bin; copy it again"),
    ],
)
def test_lora_layout_without_a_file_is_rejected(base, tmp_path, encoder, missing, message):
    adapted = write_adapted(tmp_path / "adapted", base, encoder)
    for name in missing:
        (adapted / name).unlink()
    with pytest.raises(CheckpointError, match=message):
        PERankRanker(adapted, encoder, device="cpu")


def test_lora_layout_needs_one_of_the_two_files_with_the_projector(base, tmp_path, encoder):
    adapted = write_adapted(tmp_path / "adapted", base, encoder)
    before = ranks(adapted, encoder)
    (adapted / "projector.bin").unlink()
    assert ranks(adapted, encoder) == before


def test_lora_layout_whose_base_is_elsewhere_says_where_to_name_it(base, tmp_path, encoder):
    adapted = write_adapted(tmp_path / "adapted", base, encoder)
    change_json(adapted / "adapter_config.json", base_model_name_or_path="./moved")
    with pytest.raises(ConfigError, match=r"there is no folder \./moved; set its path in .*adapter_config\.json"):
        PERankRanker(adapted, encoder, device="cpu")


def test_aligned_projector_is_not_served_and_the_command_that_trains_it_is_named(base, tmp_path, encoder):
    aligned = write_aligned(tmp_path / "aligned", base, encoder)
    with pytest.raises(CheckpointError, match=r"does not rank yet; train it: train-pe-rank --base .*/aligned --lists"):
        PERankRanker(aligned, encoder, device="cpu")


def test_template_in_the_folder_is_read_without_a_word_of_the_config(folder, encoder):
    (folder / "template.yaml").write_text(SHORT, encoding="utf-8")
    info = PERankRanker(folder, encoder, device="cpu").info
    assert (info.template_sha256, info.warning) == (load_template(str(folder / "template.yaml")).sha256, "")
