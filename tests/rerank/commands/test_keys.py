"""`rerank keys add`: the key on standard output, its hash in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.access.key_file import hash_of_key, read_keys
from rerank.errors import ConfigError
from tests.rerank.commands.conftest import Command


def test_key_is_printed_once_and_alone(rerank: Command, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    made = rerank("keys", "add", "frontend", "--keys", path, "--max-calls", 8)
    key = made.out.removesuffix("\n")
    assert made.code == 0
    assert key.startswith("rerank_")
    assert key not in made.err
    (entry,) = read_keys(path)
    assert (entry.name, entry.sha256) == ("frontend", hash_of_key(key))
    assert (entry.max_calls, entry.max_queue_tokens) == (8, None)


def test_entry_of_a_key_takes_further_settings(rerank: Command, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    assert rerank("keys", "add", "shop", "--keys", path).code == 0
    entry = path.read_text()
    path.write_text(f"{entry}  max_queue_tokens: 5000\n")
    (key,) = read_keys(path)
    assert key.max_queue_tokens == 5000
    path.write_text(f"{entry}  models: [first]\n")
    with pytest.raises(ConfigError, match=r"models: unknown setting"):
        read_keys(path)
