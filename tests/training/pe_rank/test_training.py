"""`train-pe-rank` from its arguments to a folder that is served."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.pe_rank.training import train_pe_rank
from rerank_training.trainer.arguments import RunArguments
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from rerank.checkpoints.manifest import read_manifest
from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.prompting.templates import load_template
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import ScoreKind
from tests.causal_lms import SIZES, write_causal_lm
from tests.fakes import ranking_of
from tests.pe_checkpoints import SHORT, change_weights, published_tokenizer, random_projector, write_published
from tests.training.small_lists import HELD_OUT, logged_losses, training_lists, write_training_lists

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    write_training_lists(folder / "held-out.jsonl", queries=HELD_OUT)
    return write_training_lists(folder / "lists.jsonl")


@pytest.fixture(scope="module")
def trained(checkpoint: Path, encoder: Encoder, lists: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a run of 16 steps, evaluated and saved at steps 8 and 16."""
    return train_pe_rank(
        arguments(checkpoint, lists, eval_lists=str(lists.with_name("held-out.jsonl")), window_size=5),
        long_run(tmp_path_factory.mktemp("runs") / "run", save_steps=8, eval_steps=8),
        encoder,
    )


def arguments(base: Path, lists: Path, **changed: Any) -> PERankArguments:
    plain: dict[str, Any] = {"text_weight": 0.0, "kl_weight": 0.0, "window_size": 4, "passage_tokens": 6}
    return PERankArguments(lists=str(lists), base=str(base), **(plain | changed))


def settings(out: Path, **changed: Any) -> RunArguments:
    plain: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 2, "warmup_steps": 0, "save_steps": 2}
    plain |= {"learning_rate": 1e-3, "use_cpu": True, "logging_steps": 1}
    return RunArguments(output_dir=str(out), **(plain | changed))


def long_run(out: Path, **changed: Any) -> RunArguments:
    long = {"max_steps": 16, "learning_rate": 3e-3, "per_device_train_batch_size": 4, "save_steps": 16}
    return settings(out, **long | changed)


def test_result_is_served_and_described_by_its_manifest(trained, encoder):
    manifest = read_manifest(trained)  # checks weights and template
    assert (manifest.ranker, manifest.window_size, manifest.passage_tokens) == ("pe-rank", 5, 0)
    assert 0 < manifest.metrics["nDCG@10"] <= 1
    ranker = PERankRanker(trained, encoder, "cpu")
    item = training_lists()[0]
    assert len(ranking_of(ranker, item.query, item.passages).scores) == len(item.passages)
    assert ranker.info.template_sha256 == load_template("pe_rank").sha256
    assert (manifest.instructions, ranker.info.reads_instruction) == (0, False)


def test_result_does_not_store_the_token_embeddings_of_the_encoder(trained, checkpoint):
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, trained))
    assert after.keys() == before.keys()
    assert not torch.equal(after["projector.down.weight"], before["projector.down.weight"])


@pytest.mark.parametrize("decoding", ["one_step", "dynamic"])
def test_training_lowers_the_loss(trained, checkpoint, encoder, lists, tmp_path, decoding):
    run = trained.parent
    if decoding == "dynamic":
        run = train_pe_rank(arguments(checkpoint, lists, decoding=decoding), long_run(tmp_path / "run"), encoder).parent
    losses = logged_losses(run / "checkpoint-16")
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_adapter_is_merged_into_the_result(checkpoint, encoder, lists, tmp_path):
    final = train_pe_rank(arguments(checkpoint, lists, lora_rank=2), settings(tmp_path / "run"), encoder)
    before, after = (load_file(folder / "model.safetensors") for folder in (checkpoint, final))
    assert before.keys() == after.keys()
    changed = "model.layers.0.self_attn.o_proj.weight"
    assert not torch.equal(before[changed], after[changed])


def test_published_layout_trains_with_text_and_keeps_its_own_vocabulary(encoder, lists, tmp_path):
    base = write_published(tmp_path / "published", encoder, template=SHORT)
    with_text = arguments(base, lists, text_weight=1.0, kl_weight=0.2)
    final = train_pe_rank(with_text, settings(tmp_path / "run"), encoder)
    assert "model.embed_tokens.weight" in load_file(final / "model.safetensors")
    assert PERankRanker(final, encoder, "cpu").info.max_window_size > 2


def test_causal_lm_is_aligned_and_then_trained_to_rank(encoder, lists, tmp_path):
    base = tmp_path / "base"
    write_causal_lm(base, "mistral", published_tokenizer())
    aligned = train_pe_rank(arguments(base, lists, objective="align"), long_run(tmp_path / "align"), encoder)
    losses = logged_losses(tmp_path / "align" / "checkpoint-16")
    assert sum(losses[-5:]) < sum(losses[:5])
    before, after = load_file(base / "model.safetensors"), load_file(aligned / "model.safetensors")
    assert all(torch.equal(after[name], tensor.float()) for name, tensor in before.items())  # projector only
    ranked = train_pe_rank(arguments(aligned, lists), settings(tmp_path / "rank"), encoder)
    assert PERankRanker(ranked, encoder, "cpu").info.kind == "pe-rank"


def test_published_layout_is_trained_from_its_alignment_and_served_as_their_code_decodes(encoder, lists, tmp_path):
    base = write_causal_lm(tmp_path / "base", "mistral", published_tokenizer())
    published: dict[str, Any] = {"layout": "published", "decoding": "dynamic"}
    align = arguments(base, lists, objective="align", **published)
    aligned = train_pe_rank(align, settings(tmp_path / "align", max_steps=1), encoder)
    assert read_manifest(aligned) is not None  # checks projector.bin
    final = train_pe_rank(arguments(aligned, lists, **published), settings(tmp_path / "rank", max_steps=1), encoder)
    assert "model.projector.0.weight" in load_file(final / "model.safetensors")
    info = PERankRanker(final, encoder, "cpu").info
    assert (info.score_kind, info.warning) == (ScoreKind.RANK, "")


def gpt2(folder: Path, encoder: Encoder) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2)).save_pretrained(folder)
    published_tokenizer().save_pretrained(folder)


def without_a_weight(folder: Path, encoder: Encoder) -> None:
    write_causal_lm(folder, "mistral", published_tokenizer())
    change_weights(folder, {}, without="model.norm.weight")


def of_a_wider_encoder(folder: Path, encoder: Encoder) -> None:
    write_published(folder, encoder)
    wide = {f"model.projector.{name}": tensor for name, tensor in random_projector(768, SIZES["hidden_size"]).items()}
    change_weights(folder, wide)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder, _: folder.mkdir(), r"holds no config\.json"),
        (gpt2, r"GPT2LMHeadModel, whose layers serving cannot read"),
        (without_a_weight, r"does not fit its config\.json: weights without model\.norm\.weight"),
        (of_a_wider_encoder, "projector maps width 768 to 64, but the encoder's"),
    ],
)
def test_base_that_cannot_be_trained_is_named(encoder, lists, tmp_path, write, message):
    write(tmp_path / "base", encoder)
    with pytest.raises(CheckpointError, match=message):
        train_pe_rank(arguments(tmp_path / "base", lists), settings(tmp_path / "run"), encoder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoding": "dynamic", "rank_loss": "ranknet"}, "is trained with listmle, .* not with ranknet"),
        ({"objective": "align", "lora_rank": 4}, "are for --objective rank"),
    ],
)
def test_contradicting_arguments_are_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        arguments(Path("base"), Path("lists"), **changed)


@pytest.mark.parametrize(
    ("base", "encoder", "message"),
    [
        ("gpt2-nope", "", "--base: gpt2-nope is neither .*HF_HUB_OFFLINE"),
        (".", "org/nope", r"--encoder: org/nope is neither .*HF_HUB_OFFLINE"),
    ],
)
def test_base_or_encoder_that_cannot_be_had_is_refused_before_the_lists_are_read(
    tmp_path, monkeypatch, base, encoder, message
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=message):
        train_pe_rank(arguments(Path(base), tmp_path / "no lists", encoder=encoder), settings(tmp_path / "run"))
