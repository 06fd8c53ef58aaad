"""The command `rerank`: an example in the help of each command; keys and checkpoints."""

import json
import re
import shlex

import pytest

from rerank.access.keys import hash_of_key, read_keys
from rerank.commands.cli import app as rerank_app
from rerank.errors import ConfigError
from rerank.rankers.self_test import GOLDEN
from tests.causal_lms import finish
from tests.test_doc_commands import PROJECT, check_command, help_of

COMMANDS = [
    *([("rerank", command.name or command.callback.__name__) for command in rerank_app.registered_commands]),
    ("rerank", "keys", "add"),
    *(("rerank", "checkpoint", name) for name in ("zero-init", "pack", "golden")),
    *((name,) for name in PROJECT["scripts"] if name != "rerank"),
]


def slow_if_it_imports_torch(command: tuple[str, ...]) -> object:
    return pytest.param(command, marks=pytest.mark.slow) if command[0].startswith(("train", "distill")) else command


@pytest.mark.parametrize("command", [*map(slow_if_it_imports_torch, COMMANDS)], ids=" ".join)
def test_help_ends_with_an_example_that_exists(command):
    _, found, example = help_of(*command).partition("Example:\n")
    assert found
    lines = [line for line in re.sub(r"\\\n\s*", "", example).splitlines() if line.strip()]
    assert any(tuple(shlex.split(line, comments=True)[: len(command)]) == command for line in lines)
    for line in lines:
        assert line.startswith("  ")
        if words := shlex.split(line, comments=True):  # a comment may stand above its command
            check_command(words)


def test_key_is_printed_once_and_alone(rerank, tmp_path):
    path = tmp_path / "keys.yaml"
    made = rerank("keys", "add", "frontend", "--keys", path, "--max-calls", 8)
    key = made.out.removesuffix("\n")
    assert made.code == 0
    assert key.startswith("rerank_")
    assert key not in made.err
    (entry,) = read_keys(path)
    assert (entry.name, entry.sha256) == ("frontend", hash_of_key(key))
    assert (entry.max_calls, entry.max_queue_tokens) == (8, None)


def test_entry_of_a_key_takes_further_settings(rerank, tmp_path):
    path = tmp_path / "keys.yaml"
    assert rerank("keys", "add", "shop", "--keys", path).code == 0
    entry = path.read_text()
    path.write_text(f"{entry}  max_queue_tokens: 5000\n")
    (key,) = read_keys(path)
    assert key.max_queue_tokens == 5000
    path.write_text(f"{entry}  models: [first]\n")
    with pytest.raises(ConfigError, match=r"models: unknown setting"):
        read_keys(path)


@pytest.mark.slow
def test_checkpoint_is_written_packed_and_gets_its_scores(rerank, tmp_path):
    made, packed = tmp_path / "made", tmp_path / "packed"
    written = rerank("checkpoint", "zero-init", "--out", made)
    assert written.out == f"{made}: a model over sentence-transformers/all-MiniLM-L6-v2, seed 0\n"
    assert json.loads((made / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"] == 3
    finish(made)
    assert rerank("checkpoint", "pack", made, "--out", packed).out.startswith(f"{packed}: ")
    assert rerank("checkpoint", "golden", packed).out == f"{packed / GOLDEN}\n"
    assert json.loads((packed / GOLDEN).read_text(encoding="utf-8"))["scores"]


def test_share_without_a_start_is_refused(rerank, tmp_path):
    refused = rerank("checkpoint", "pack", tmp_path, "--out", tmp_path / "out", "--share", 0.5)
    assert refused.code == 2
    assert "give --start and a --share below 1 together, or neither" in refused.err
