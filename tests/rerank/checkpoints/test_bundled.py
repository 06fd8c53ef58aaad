"""Bundled checkpoints: size, manifest and golden scores."""

import pytest

from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import TEMPLATE_FILE, read_manifest
from rerank.config import FirstModel
from rerank.config.named import BUNDLED
from rerank.errors import SelfTestFailed
from rerank.prompting.templates import load_template
from rerank.rankers.first import first_settings
from rerank.rankers.self_test import CPU_TOLERANCE, check, tolerance
from rerank.reranking.load_models import load_first, load_ranker, scoring_settings, with_path

FOLDERS = (bundled.FIRST, bundled.PE_RANK)
GOLDEN_FOLDERS = {"first": bundled.FIRST, "pe-rank": bundled.PE_RANK}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_manifest_has_valid_hashes_and_no_absolute_paths(folder):
    manifest = read_manifest(folder)  # raises if a hash differs
    assert manifest is not None
    assert not [word for word in manifest.command.split() if word.startswith("/")]
    assert manifest.data


def test_folder_of_the_working_directory_does_not_replace_the_base_of_first(tmp_path, monkeypatch):
    (tmp_path / bundled.SMOLLM2).mkdir()
    monkeypatch.chdir(tmp_path)
    found = first_settings(FirstModel(name="first", ranker="first", path=bundled.FIRST))  # raises if it hashes it
    assert found.template == load_template(str(bundled.FIRST / TEMPLATE_FILE))


@pytest.mark.parametrize("model", map(BUNDLED.__getitem__, GOLDEN_FOLDERS), ids=lambda model: model.name)
def test_bundled_checkpoint_has_its_golden_scores_and_a_damaged_weight_is_noticed(encoder, model, caplog):
    """One number of one layer, as a broken disk or another version of the base would change it."""
    model = model.model_copy(update={"precision": "float32"})
    with caplog.at_level("INFO"):
        ranker = load_ranker(with_path(model, encoder), encoder, "cpu")
        compared = scoring_settings(model), GOLDEN_FOLDERS[model.name], CPU_TOLERANCE
        check(ranker, *compared)
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("rerank")]
    layer = ranker._reader._model.get_decoder().layers[1]  # type: ignore[attr-defined]
    layer.post_attention_layernorm.weight.data[7] *= -3
    ranker.reference = None  # type: ignore[attr-defined]  # a damaged file changes it, too
    with pytest.raises(SelfTestFailed, match=r"scores differ from golden\.json by"):
        check(ranker, *compared)


def test_first_passes_its_self_test_in_bfloat16():
    model = FirstModel(name="first", ranker="first", precision="bfloat16")
    ranker = load_first(model, "cpu")
    assert (ranker.info.precision, ranker.info.supports_batching) == ("bfloat16", True)
    check(ranker, scoring_settings(model), bundled.FIRST, tolerance("cpu", "bfloat16"))
