"""What the reranker makes for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.zero_init import write_zero_init_checkpoint
from rerank.registry import zero_init_checkpoint


def test_checkpoint_is_made_once_in_the_users_cache(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = zero_init_checkpoint(encoder)
    made_ns = (first / "model.safetensors").stat().st_mtime_ns
    assert zero_init_checkpoint(encoder) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made_ns


def test_two_services_may_start_on_an_empty_cache(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one takes what the quicker one made."""

    def overtaken(encoder: Encoder, out: Path) -> None:
        write_zero_init_checkpoint(encoder, out)
        raise ConfigError("exists now")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rerank.registry.write_zero_init_checkpoint", overtaken)
    assert (zero_init_checkpoint(encoder) / "config.json").is_file()


def test_checkpoint_that_cannot_be_made_is_an_error(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(encoder: Encoder, out: Path) -> None:
        raise ConfigError("no room")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rerank.registry.write_zero_init_checkpoint", failing)
    with pytest.raises(ConfigError, match="no room"):
        zero_init_checkpoint(encoder)
