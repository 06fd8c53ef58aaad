"""`train-first` from its inputs, with the prompt settings of its base, to a checkpoint that FirstRanker serves."""

import hashlib
import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import PromptSettings
from rerank_training.first.training import load_base, prompt_settings
from rerank_training.lists.training_list import TrainingList
from safetensors.torch import load_file, save_file

from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import TEMPLATE_FILE, read_manifest
from rerank.config import FirstModel
from rerank.errors import CheckpointError, ConfigError
from rerank.models.loading import load_causal_lm
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker, first_settings
from tests.fakes import prepared_window
from tests.hub_server import running_hub, use_hub
from tests.word_lists import first_run, word_lists, write_inputs

pytestmark = pytest.mark.slow

TWO_STEPS = ["--max-steps", "2", "--per-device-train-batch-size", "4", "--learning-rate", "1e-2"]
LORA = ["--lora-rank", "4"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), 64)


@pytest.fixture(scope="module")
def overfit(inputs: Path) -> Path:
    """The 64 lists learnt by heart, in their order: 40 steps of 32 windows, with an evaluation at the end."""
    flags = "--max-steps 40 --eval-steps 40 --per-device-train-batch-size 32 --learning-rate 2e-3 --shuffled-share 0"
    held_out = ["--eval-lists", str(inputs / "held-out.jsonl")]
    return first_run(inputs, inputs / "overfit", *held_out, *shlex.split(flags))


@pytest.fixture(scope="module")
def adapter(inputs: Path) -> Path:
    return first_run(inputs, inputs / "adapter", *TWO_STEPS, *LORA)


def served(checkpoint: Path, items: list[TrainingList]) -> list[tuple[float, ...]]:
    """Scores of the ranker that serves the checkpoint with its template."""
    ranker = FirstRanker(checkpoint, str(checkpoint / TEMPLATE_FILE), device="cpu")
    rankings = rank_windows(ranker, [prepared_window(ranker, item.query, item.passages) for item in items])
    return [ranking.scores for ranking in rankings]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(next(checkpoint.glob("*.safetensors")))


def learning_rate(run: Path) -> str:
    return str(json.loads((run / "arguments.json").read_text(encoding="utf-8"))["learning_rate"])


# --- trained weights, and how they are served


def test_lists_are_learnt_by_heart_and_served_in_their_order(overfit):
    items = word_lists(64)
    best = [max(range(4), key=scores.__getitem__) for scores in served(overfit, items)]
    assert best == [item.relevance.index(1.0) for item in items]


def test_adapter_and_its_merge_are_served_alike_and_unlike_the_base(inputs, adapter):
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


def test_second_run_from_a_relative_path_gives_the_same_bits_and_is_served_from_any_folder(
    inputs, adapter, monkeypatch
):
    monkeypatch.chdir(inputs)
    relative = inputs / first_run(Path(), Path("relative"), *TWO_STEPS, *LORA)
    monkeypatch.chdir("/")
    assert read_manifest(relative).weights_sha256 == read_manifest(adapter).weights_sha256
    assert served(relative, word_lists(2)) == served(adapter, word_lists(2))


def test_adapter_is_trained_further_on_its_own_base(inputs, adapter, tmp_path):
    """With the learning rate of an adapter; and with the tokenizer of its base if it has none."""
    further = first_run(inputs, tmp_path / "further", *TWO_STEPS[:4], "--base", str(adapter))
    assert learning_rate(tmp_path / "further") == "0.0005"
    found, start = weights(further), weights(adapter)
    assert found.keys() == start.keys()
    assert any(not torch.equal(found[name], start[name]) for name in found)
    first, second = read_manifest(adapter), read_manifest(further)
    assert (second.base, second.base_revision, second.metrics) == (first.base, first.base_revision, {})
    assert served(further, word_lists(2)) != served(adapter, word_lists(2))
    for path in further.glob("tokenizer*"):
        path.unlink()
    vocabularies = [load_base(FirstArguments(lists="", base=str(base)))[1].get_vocab() for base in (further, adapter)]
    assert vocabularies[0] == vocabularies[1]


def test_adapter_is_not_trained_further_without_one_of_its_weights(adapter, tmp_path):
    copy = Path(shutil.copytree(adapter, tmp_path / "copy"))
    found = load_file(copy / "adapter_model.safetensors")
    name = next(iter(found))
    found[name.replace("layers.0", "layers.9")] = found.pop(name)
    save_file(found, copy / "adapter_model.safetensors", metadata={"format": "pt"})
    (copy / "rerank.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks the weights model\.layers\.0"):
        load_base(FirstArguments(lists="", base=str(copy)))


@pytest.mark.parametrize(
    ("bf16", "lora_rank", "frozen"), [(True, 4, {torch.bfloat16}), (False, 4, {torch.float32}), (True, 0, set())]
)
def test_mixed_precision_keeps_the_frozen_weights_in_bfloat16_and_trained_ones_in_float32(
    inputs, bf16, lora_rank, frozen
):
    model, _ = load_base(FirstArguments(lists="", base=str(inputs / "base"), lora_rank=lora_rank), bf16)
    assert {weight.dtype for weight in model.parameters() if not weight.requires_grad} == frozen
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}


@pytest.mark.parametrize("flags", [["--neftune-noise-alpha", "5"], ["--bf16", "true"]])
def test_noise_on_the_embeddings_and_bfloat16_change_the_training(inputs, adapter, tmp_path, flags):
    found, expected = weights(first_run(inputs, tmp_path / "run", *TWO_STEPS, *LORA, *flags)), weights(adapter)
    assert found.keys() == expected.keys()
    assert any(not torch.equal(found[name], expected[name]) for name in found)


def test_base_is_downloaded_by_its_name_and_trained_as_its_folder(inputs, tmp_path, monkeypatch):
    """A name that a profile lists has that profile; the adapter finds its base in the cache, without the hub."""
    pytest.importorskip("ftfy")
    name, base = "rryisthebest/First_Model", shutil.copytree(inputs / "base", tmp_path / "base")
    shutil.copy(bundled.FIRST / "template.yaml", base)
    with running_hub() as server:
        server.models = {name: base}
        use_hub(server.url, tmp_path / "cache", monkeypatch)
        by_name = first_run(inputs, tmp_path / "by-name", *TWO_STEPS, *LORA, "--base", name)
        assert "model.safetensors" in server.downloaded
    given = ["--base", str(base), "--profile", "first-zephyr"]
    by_folder = first_run(inputs, tmp_path / "by-folder", *TWO_STEPS, *LORA, *given)
    of_name, of_folder = weights(by_name), weights(by_folder)
    assert of_name.keys() == of_folder.keys()
    assert all(torch.equal(of_name[key], of_folder[key]) for key in of_name)
    manifests = read_manifest(by_name), read_manifest(by_folder)
    assert [manifest and manifest.base for manifest in manifests] == [name, str(base)]
    assert len({manifest and manifest.base_revision for manifest in manifests}) == 1
    assert served(by_name, word_lists(4)) == served(by_folder, word_lists(4))


# --- manifest


def test_manifest_names_base_data_and_template(overfit, inputs):
    manifest = read_manifest(overfit)
    assert (manifest.ranker, manifest.identifiers) == ("first", "letters")
    assert (manifest.window_size, manifest.passage_tokens) == (4, 256)
    assert manifest.base == str(inputs / "base")
    for sha256, path in (
        (manifest.base_revision, inputs / "base" / "model.safetensors"),
        (manifest.weights_sha256, overfit / "model.safetensors"),
        (manifest.template_sha256, Path("rerank/templates/first_small.yaml")),
        (manifest.data["lists.jsonl"], inputs / "lists.jsonl"),
    ):
        assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest.metrics.keys() == {"nDCG@10"}
    assert manifest.versions.keys() == {"torch", "transformers", "peft"}
    assert (overfit / TEMPLATE_FILE).read_bytes() == Path("rerank/templates/first_small.yaml").read_bytes()


# --- errors


def test_base_that_cannot_be_had_is_refused_before_the_lists_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"--base gpt2-nope: gpt2-nope is neither .*HF_HUB_OFFLINE"):
        first_run(tmp_path / "no inputs", tmp_path / "run", "--base", "gpt2-nope")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/nope"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"org/nope is neither .*HF_HUB_OFFLINE"):
        first_run(tmp_path / "no inputs", tmp_path / "run", "--base", str(tmp_path))


@pytest.mark.parametrize("base", [bundled.PE_RANK, None])
def test_pe_rank_checkpoint_is_sent_to_its_own_training(base, tmp_path):
    if base is None:  # as published, without a manifest
        (base := tmp_path / "published").mkdir()
        (base / "config.json").write_text('{"model_type": "embed_mistral", "encoder_name": "jina"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--base .* is a PE-Rank checkpoint.*; train it by train-pe-rank"):
        first_run(tmp_path / "no inputs", tmp_path / "run", "--base", str(base))


def test_base_that_is_not_a_causal_lm_is_refused(inputs, tmp_path):
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}', encoding="utf-8")
    (tmp_path / "empty").mkdir()
    shutil.copytree(inputs / "base", tmp_path / "truncated")
    (tmp_path / "truncated" / "model.safetensors").write_bytes(b"half")
    for name in ("t5", "empty", "truncated"):
        with pytest.raises(CheckpointError, match=f"causal language model .*{name} cannot be loaded"):
            first_run(inputs, tmp_path / "run", "--base", str(tmp_path / name))


def prompt_of(base: Path, **flags: object) -> PromptSettings:
    arguments = FirstArguments(lists="lists.jsonl", base=str(base), **flags)  # type: ignore[arg-type]
    return prompt_settings(arguments, read_manifest(base))


def test_base_with_a_manifest_gives_its_own_settings():
    template = load_template("first_smollm2")
    found = prompt_of(bundled.FIRST)
    assert found.template.sha256 == template.sha256
    assert (found.identifiers, found.window_size, found.passage_tokens) == (IdentifierKind.LETTERS, 20, 48)


def test_training_with_a_profile_reads_texts_as_the_profile_is_served(inputs, tmp_path, caplog):
    """The prompt of the folder, and the style that belongs to it; the checkpoint is then served in the same style."""
    pytest.importorskip("ftfy")
    base = shutil.copytree(inputs / "base", tmp_path / "base")
    shutil.copy(bundled.FIRST / "template.yaml", base)
    found = prompt_of(base, profile="first-zephyr")
    served_as = FirstModel(name="it", ranker="first", profile="first-zephyr", path=base)
    assert found.template.style == served_as.prompt
    assert found.template.style.titles == "sentence"
    assert (found.identifiers, found.window_size, found.passage_tokens) == (IdentifierKind.LETTERS, 20, 0)
    trained = first_run(inputs, tmp_path / "run", "--base", str(base), "--profile", "first-zephyr", *TWO_STEPS)
    manifest = read_manifest(trained)
    assert manifest.prompt == found.template.style.stated
    assert first_settings(FirstModel(name="it", ranker="first", path=trained)).template.style == served_as.prompt
    with pytest.raises(CheckpointError, match=r"was trained with prompt: .*titles sentence.*, not max_words 9; leave"):
        first_settings(FirstModel(name="it", ranker="first", path=trained, prompt=PromptStyle(max_words=9)))
    assert prompt_of(trained).template.style == served_as.prompt


def test_profile_of_another_ranker_is_refused():
    with pytest.raises(ConfigError, match="profile rank-zephyr is of ranker generation, not first"):
        prompt_of(bundled.FIRST, profile="rank-zephyr")


def test_flag_that_differs_is_used_with_a_warning_that_names_both_values(caplog):
    found = prompt_of(bundled.FIRST, template="first", identifiers="numbers", window_size=10, passage_tokens=0)
    assert found == PromptSettings(load_template("first"), IdentifierKind.NUMBERS, 10, 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition(", so it")[0].partition(",")[0] for message in warnings] == [
        f"--template first ({load_template('first').sha256[:12]}): the base was trained with "
        f"{bundled.FIRST / 'template.yaml'} ({load_template('first_smollm2').sha256[:12]})",
        "--identifiers numbers: the base was trained with letters",
        "--window-size 10: the base was trained with 20",
        "--passage-tokens 0: the base was trained with 48",
    ]
