"""The public names of the package `rerank`: importable, the same for type checkers, and cheap to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rerank

HEAVY = {"torch", "transformers", "sentence_transformers", "faiss", "numpy", "grpc", "pydantic"}


def names_for_type_checkers() -> dict[str, str]:
    """Name → module of the imports under `if TYPE_CHECKING`."""
    tree = ast.parse(Path(rerank.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


@pytest.mark.parametrize("name", rerank.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(rerank, name) is not None
    assert name in dir(rerank)


def test_public_names_are_the_same_for_type_checkers() -> None:
    expected = {name: module for module, names in rerank._EXPORTS.items() for name in names}
    assert names_for_type_checkers() == expected
    assert set(rerank.__all__) == {*expected, "__version__"}


def test_import_of_the_package_loads_no_heavy_library() -> None:
    program = "import sys, rerank; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "rerank" in loaded
    assert not HEAVY & set(loaded)
