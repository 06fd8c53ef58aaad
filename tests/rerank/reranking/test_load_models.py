"""Loading: the zero-initialised checkpoint in the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.zero_init import write_zero_init_checkpoint
from rerank.reranking.load_models import zero_init_checkpoint


def test_zero_init_checkpoint_is_written_once_to_the_users_cache(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = zero_init_checkpoint(encoder)
    written_ns = (folder / "model.safetensors").stat().st_mtime_ns
    assert zero_init_checkpoint(encoder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written_ns


@pytest.mark.parametrize("is_written_by_another", [True, False])
def test_zero_init_checkpoint_that_cannot_be_written_is_that_of_a_faster_process_or_an_error(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written_by_another: bool
) -> None:
    def fail(encoder: Encoder, out: Path) -> None:
        if is_written_by_another:
            write_zero_init_checkpoint(encoder, out)
        raise ConfigError("exists already")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rerank.reranking.load_models.write_zero_init_checkpoint", fail)
    if is_written_by_another:
        assert (zero_init_checkpoint(encoder) / "config.json").is_file()
    else:
        with pytest.raises(ConfigError, match="exists already"):
            zero_init_checkpoint(encoder)
