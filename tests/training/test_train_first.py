"""train-first from its inputs to a checkpoint that FirstRanker serves."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from rerank_training.data import TrainingList, write_lists
from rerank_training.train_first import main
from safetensors.torch import load_file

from rerank.errors import CheckpointError, CollectionError, ConfigError
from rerank.manifest import TEMPLATE_FILE, read_manifest
from rerank.models.loading import load_causal_lm
from rerank.rankers.first import FirstRanker
from rerank.types import Window
from tests.word_lists import first_flags, first_run, word_lists, write_inputs

TWO_STEPS = ["--max_steps", "2", "--per_device_train_batch_size", "4", "--learning_rate", "1e-2"]
LORA = ["--lora_rank", "4"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), 64)


@pytest.fixture(scope="module")
def overfit(inputs: Path) -> Path:
    """The 64 lists, learnt by heart, in order: 40 steps of 32 windows."""
    flags = "--max_steps 40 --eval_steps 20 --per_device_train_batch_size 32 --learning_rate 2e-3 --shuffled_share 0"
    return first_run(inputs, inputs / "overfit", "--eval_lists", str(inputs / "lists.jsonl"), *shlex.split(flags))


@pytest.fixture(scope="module")
def adapter(inputs: Path) -> Path:
    return first_run(inputs, inputs / "adapter", *TWO_STEPS, *LORA)


def served(checkpoint: Path, items: list[TrainingList]) -> list[tuple[float, ...]]:
    """Scores by the ranker, with the checkpoint's own template."""
    ranker = FirstRanker(checkpoint, str(checkpoint / TEMPLATE_FILE), device="cpu")
    prepared = [ranker.prepare(item.query, item.passages) for item in items]
    return [ranking.scores for ranking in ranker.rank([Window(one.query, one.passages) for one in prepared])]


# --- what it learns, and how that is served


def test_small_lists_are_learnt_by_heart_and_served_in_their_order(overfit: Path) -> None:
    items = word_lists(64)
    best = [max(range(4), key=scores.__getitem__) for scores in served(overfit, items)]
    assert best == [item.relevance.index(1.0) for item in items]
    assert json.loads((overfit / "rerank.json").read_text(encoding="utf-8"))["metrics"] == {"nDCG@10": 1.0}


def test_base_knew_nothing_of_it(inputs: Path) -> None:
    shutil.copytree(inputs / "base", untrained := inputs / "untrained")
    (untrained / TEMPLATE_FILE).write_bytes(Path("rerank/templates/first_small.yaml").read_bytes())
    items = word_lists(64)
    best = [max(range(4), key=scores.__getitem__) for scores in served(untrained, items)]
    assert sum(place == item.relevance.index(1.0) for place, item in zip(best, items, strict=True)) < 32


def test_adapter_and_its_merge_are_served_alike_and_unlike_the_base(inputs: Path, adapter: Path) -> None:
    merged = inputs / "merged"
    load_causal_lm(adapter, torch.device("cpu")).model.save_pretrained(merged)
    for path in [*adapter.glob("tokenizer*"), adapter / TEMPLATE_FILE]:
        shutil.copy(path, merged)
    shutil.copytree(inputs / "base", plain := inputs / "plain")
    shutil.copy(adapter / TEMPLATE_FILE, plain)
    items = word_lists(8)
    by_adapter, by_merge, by_base = (torch.tensor(served(folder, items)) for folder in (adapter, merged, plain))
    torch.testing.assert_close(by_adapter, by_merge, atol=1e-5, rtol=0)
    assert (by_adapter - by_base).abs().max() > 1e-2


def test_adapter_holds_no_weights_of_its_base_and_is_served_from_any_folder(
    inputs: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all("lora" in name for name in load_file(adapter / "adapter_model.safetensors"))
    monkeypatch.chdir(inputs)
    relative = first_run(Path(), Path("relative"), *TWO_STEPS, *LORA)
    monkeypatch.chdir("/")
    assert served(inputs / relative, word_lists(2)) == served(adapter, word_lists(2))


def test_same_command_gives_the_same_bits(inputs: Path, adapter: Path) -> None:
    again = first_run(inputs, inputs / "again", *TWO_STEPS, *LORA)
    assert read_manifest(again).weights_sha256 == read_manifest(adapter).weights_sha256  # type: ignore[union-attr]


def test_frozen_token_embeddings_stay_as_they_are(inputs: Path, tmp_path: Path) -> None:
    base = load_file(inputs / "base" / "model.safetensors")
    result = load_file(
        first_run(inputs, tmp_path / "run", *TWO_STEPS, "--freeze_token_embeddings", "true") / "model.safetensors"
    )
    changed = {name for name in base if not torch.equal(base[name], result[name])}
    assert changed == base.keys() - {"model.embed_tokens.weight"}


@pytest.mark.parametrize("adapted", [[], LORA], ids=["full", "lora"])
def test_noise_checkpointing_and_half_precision_are_transformers_own_flags(
    inputs: Path, tmp_path: Path, adapted: list[str]
) -> None:
    flags = shlex.split("--neftune_noise_alpha 5 --gradient_checkpointing true --bf16 true")
    noisy = first_run(inputs, tmp_path / "noisy", *TWO_STEPS, *flags, *adapted)
    plain = first_run(inputs, tmp_path / "plain", *TWO_STEPS, *adapted)
    found, expected = (load_file(next(folder.glob("*.safetensors"))) for folder in (noisy, plain))
    assert found.keys() == expected.keys()
    assert any(not torch.equal(found[name], expected[name]) for name in found)


def test_gradient_checkpointing_changes_no_weight(inputs: Path, tmp_path: Path, adapter: Path) -> None:
    result = first_run(inputs, tmp_path / "run", *TWO_STEPS, *LORA, "--gradient_checkpointing", "true")
    found, expected = (load_file(folder / "adapter_model.safetensors") for folder in (result, adapter))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-5)


def test_inverse_propensity_changes_what_is_learnt_where_the_best_stands_first(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, 0)
    lists = [best_first(item) if number % 8 else item for number, item in enumerate(word_lists(32))]
    write_lists(inputs / "lists.jsonl", lists)
    flags = [*TWO_STEPS, "--shuffled_share", "0"]
    plain = first_run(inputs, tmp_path / "plain", *flags)
    weighted = first_run(inputs, tmp_path / "weighted", *flags, "--inverse_propensity", "true")
    assert served(plain, lists[:4]) != served(weighted, lists[:4])


def best_first(item: TrainingList) -> TrainingList:
    order = sorted(range(len(item.passages)), key=lambda place: -item.relevance[place])
    passages = tuple(item.passages[place] for place in order)
    return TrainingList(item.query, passages, tuple(item.relevance[place] for place in order))


# --- what it says about itself


def test_manifest_says_what_was_made_of_what(overfit: Path, inputs: Path) -> None:
    manifest = read_manifest(overfit)
    assert manifest is not None
    assert (manifest.ranker, manifest.identifiers) == ("first", "letters")
    assert (manifest.window_size, manifest.passage_tokens) == (4, 256)
    assert manifest.base == str(inputs / "base")
    for said, path in (
        (manifest.base_revision, inputs / "base" / "model.safetensors"),
        (manifest.weights_sha256, overfit / "model.safetensors"),
        (manifest.template_sha256, Path("rerank/templates/first_small.yaml")),
        (manifest.data["lists.jsonl"], inputs / "lists.jsonl"),
    ):
        assert said == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.metrics.keys() == {"nDCG@10"}
    assert manifest.versions.keys() == {"torch", "transformers", "peft"}
    assert (overfit / TEMPLATE_FILE).read_bytes() == Path("rerank/templates/first_small.yaml").read_bytes()


def test_manifest_without_held_out_lists_has_no_metrics(adapter: Path) -> None:
    manifest = read_manifest(adapter)
    assert manifest is not None
    assert manifest.metrics == {}


@pytest.mark.parametrize(("file", "what"), [("adapter_model.safetensors", "weights"), (TEMPLATE_FILE, "template")])
def test_changed_files_are_refused(adapter: Path, tmp_path: Path, file: str, what: str) -> None:
    shutil.copytree(adapter, copy := tmp_path / "copy")
    (copy / file).write_bytes((copy / file).read_bytes() + b" ")
    with pytest.raises(CheckpointError, match=f"the {what} have SHA-256 .* was changed after training"):
        read_manifest(copy)


# --- what is refused


def test_base_that_is_no_causal_lm_is_refused(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    (tmp_path / "empty").mkdir()
    shutil.copytree(inputs / "base", tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"half")
    for name in ("t5", "empty", "cut"):
        with pytest.raises(CheckpointError, match=f"base .*{name} is no causal language model that can be loaded"):
            first_run(inputs, tmp_path / "run", "--base", str(tmp_path / name))


def test_bad_lines_are_named_by_their_number(inputs: Path, tmp_path: Path) -> None:
    lines = (inputs / "lists.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[6])
    lines[6] = json.dumps(row | {"passages": row["passages"][1:]})
    (tmp_path / "bad.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(CollectionError, match=r"1 of 64 lists are bad .*bad\.jsonl:7: 4 relevances for 3 passages"):
        first_run(inputs, tmp_path / "run", "--lists", str(tmp_path / "bad.jsonl"))


def test_few_bad_lines_are_left_out(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(
        (inputs / "lists.jsonl").read_text(encoding="utf-8") + "{no json}\n", encoding="utf-8"
    )
    flags = [*TWO_STEPS, "--lists", str(tmp_path / "bad.jsonl"), "--max_bad_share", "0.1"]
    assert first_run(inputs, tmp_path / "run", *flags).is_dir()


def test_window_wider_than_the_tokenizer_has_identifiers_is_refused(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"window_size 27 exceeds the 26 single-token identifiers of .* at most 26"):
        first_run(inputs, tmp_path / "run", "--window_size", "27")


def test_unknown_loss_is_refused(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank_loss 'mse' is none of ranknet, weighted-ranknet"):
        first_run(inputs, tmp_path / "run", "--rank_loss", "mse")


def test_command_ends_with_one_line_and_status_2(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = first_flags(inputs, tmp_path / "run", "--template", "none such")
    monkeypatch.setattr(sys, "argv", ["train-first", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "error: template 'none such' is neither a file nor one of" in capsys.readouterr().err
