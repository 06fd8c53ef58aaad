"""Every third-party package that is imported is declared in pyproject.toml and pinned in constraints.txt."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

#: Folder → the extras that its commands may need, without the package's dependencies and one of the FAISS builds.
FOLDERS = {
    "rerank": ["http", "mcp", "observability", "published", "pyterrier", "ray"],
    "eval": ["eval"],
    "training": ["train"],
    "scripts": ["browser", "docs", "eval", "observability", "ray", "train", "dev"],
    "deploy": ["ray"],
    "tests": list(EXTRAS),
}

#: Programs that run in separate environments.
ELSEWHERE = {ROOT / "tests/sdk/python_clients.py"}

#: Folders whose modules are imported as top-level names here.
OURS = {"rerank", "rerank_eval", "rerank_training", "scripts", "tests"} | {
    path.stem for path in (ROOT / "scripts").iterdir()
}


def normalized(name: str) -> str:
    """The distribution's name as PyPI compares names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: Iterable[str]) -> set[str]:
    """The distribution's name of each requirement, without extras, version and marker."""
    return {normalized(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}  # type: ignore[index]


def declared(extras: Iterable[str]) -> set[str]:
    return names(PROJECT["dependencies"]).union(*(names(EXTRAS[extra]) for extra in extras))


@cache
def distributions() -> dict[str, set[str]]:
    """Import name → the distributions that install it."""
    return {module: set(map(normalized, found)) for module, found in packages_distributions().items()}


def imported(folder: str) -> dict[str, Path]:
    """Top-level names of third-party imports in a folder, each with a file that imports it."""
    found = {}
    for path in set((ROOT / folder).rglob("*.py")) - ELSEWHERE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            found |= {module.split(".")[0]: path for module in modules}
    return {module: path for module, path in found.items() if module not in OURS | sys.stdlib_module_names}


@pytest.mark.parametrize("folder", FOLDERS)
def test_imported_packages_are_declared(folder: str) -> None:
    allowed = declared([*FOLDERS[folder], "cpu"])
    for module, path in imported(folder).items():
        providers = distributions().get(module, {normalized(module)})
        assert providers & allowed, f"{path} imports {module}, which pyproject.toml does not declare for {folder}/"


def test_declared_packages_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = names(line for line in lines if re.match(r"[\w.-]+==", line))
    assert declared(set(EXTRAS) - {"gpu"}) <= pinned
