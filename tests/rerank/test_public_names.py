"""The public names of `rerank`: importable, the same for type checkers, and cheap to import, as help of commands is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rerank

HEAVY = {"torch", "transformers", "sentence_transformers", "faiss", "grpc", "ir_measures", "rerank.v1", "scipy"}


def names_for_type_checkers() -> dict[str, str]:
    """Name → module of the imports under `if TYPE_CHECKING`."""
    tree = ast.parse(Path(rerank.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


@pytest.mark.parametrize("name", rerank.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(rerank, name) is not None
    assert name in dir(rerank)


def test_public_names_are_the_same_for_type_checkers():
    expected = {name: module for module, names in rerank._EXPORTS.items() for name in names}
    assert names_for_type_checkers() == expected
    assert set(rerank.__all__) == {*expected, "__version__"}


@pytest.mark.parametrize(
    ("code", "arguments", "output"),
    [
        ("import rerank; assert not {'numpy', 'pydantic'} & sys.modules.keys()", "", ""),
        ("import rerank_training.commands", "", ""),
        ("from rerank.commands.cli import main; main()", "--help", "Usage: "),
        ("from rerank.commands.cli import main; main()", "serve --help", "Usage: "),
        ("from rerank.commands.cli import main; main()", "search --help", "Usage: "),
        ("from rerank_eval.commands import eval_trec_dl; eval_trec_dl()", "--help", "NAME=RANKER:PATH"),
        ("from rerank_eval.commands import eval_beir; eval_beir()", "--help", "NAME=RANKER:PATH"),
    ],
)
def test_names_and_help_import_no_heavy_package(code, arguments, output):
    program = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    command = [sys.executable, "-c", program, *arguments.split()]
    wide = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=wide)
    assert output in done.stdout
    imported = set(done.stderr.split())
    assert "rerank" in imported
    assert not HEAVY & imported
