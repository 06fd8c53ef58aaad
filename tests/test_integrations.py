"""Each integration can be deleted, with its tests and its entry points: the rest of the tree does not need it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INTEGRATIONS = sorted(
    part.name for part in (ROOT / "rerank" / "integrations").iterdir() if (part / "__init__.py").is_file()
)
NOT_COPIED = (".*", "build", "dist", "__pycache__")


def copy_without(folder: Path, *names: str) -> Path:
    """A copy of the tree without these integrations."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=True)
    for name in names:
        shutil.rmtree(folder / "rerank" / "integrations" / name)
        shutil.rmtree(folder / "tests" / "rerank" / "integrations" / name)
        project = folder / "pyproject.toml"
        lines = project.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if f"rerank.integrations.{name}." not in line]
        project.write_text("".join(kept), encoding="utf-8")
    _install(folder)
    return folder


def _install(folder: Path) -> None:
    """Writes what an installation of the copy would tell of its entry points, before that of this tree."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    information = folder / "rerank_listwise-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {project['name']}\nVersion: 0\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (information / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")


def run(folder: Path, *command: str) -> None:
    paths = [str(folder / part) for part in ("", "eval", "training", "proto")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_rest_collects_its_tests_and_has_types_without_any(tmp_path: Path) -> None:
    """The collection imports what the tests of the rest import, and mypy looks for every import."""
    folder = copy_without(tmp_path, *INTEGRATIONS)
    run(folder, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--collect-only", "tests")
    if (cache := ROOT / ".mypy_cache").is_dir():
        shutil.copytree(cache, folder / ".mypy_cache")
    run(folder, "-m", "mypy")


def test_nothing_else_names_an_integration() -> None:
    named = re.compile(rf"rerank[./]integrations[./]({'|'.join(INTEGRATIONS)})")
    folders = ("rerank", "eval", "training", "scripts", "tests")
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        if "integrations" not in path.relative_to(ROOT).parts and path != Path(__file__):
            assert not named.search(path.read_text(encoding="utf-8")), path
