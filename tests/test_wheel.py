"""The wheel, installed into an empty environment: its packages, its data files, and the help of every command."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).parent.parent
PACKAGES = {"rerank": "rerank", "rerank_eval": "eval/rerank_eval", "rerank_training": "training/rerank_training"}
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(Path(sys.executable), "-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel and, through a .pth file, this environment's dependencies.

    Python does not read the .pth files of a folder that a .pth file adds, so the editable install stays out of sight.
    """
    environment = tmp_path_factory.mktemp("installed")
    run(Path(sys.executable), "-m", "venv", "--without-pip", str(environment))
    bin_folder = environment / "bin"
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    pip = ("-m", "pip", "--python", str(bin_folder / "python"), "install", "--no-deps", "--no-index", "--no-compile")
    run(Path(sys.executable), *pip, str(wheel))
    return bin_folder


def run(program: Path, *arguments: str, cwd: Path | None = None) -> str:
    """What the program prints, run outside the checkout so that nothing is imported from there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [program, *arguments]
    done = subprocess.run(
        command, cwd=cwd or program.parent, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def help_commands() -> list[tuple[str, ...]]:
    from rerank.commands.cli import app

    subcommands = get_command(app).commands  # type: ignore[attr-defined]
    return [(script,) for script in SCRIPTS] + [("rerank", name) for name in subcommands]


def test_wheel_holds_three_packages_with_all_their_files(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    for package, folder in PACKAGES.items():
        assert f"{package}/py.typed" in names
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        missing = {f"{package}/{path.relative_to(ROOT / folder).as_posix()}" for path in files} - names
        assert not missing, f"not in the wheel: {', '.join(sorted(missing))}"


def test_wheel_holds_the_contract(wheel: Path) -> None:
    contract = zipfile.ZipFile(wheel).read("rerank/v1/rerank.proto")
    assert contract == (ROOT / "proto" / "rerank" / "v1" / "rerank.proto").read_bytes()


def test_packages_are_imported_from_the_wheel(installed: Path) -> None:
    lines = run(installed / "python", "-c", "\n".join(f"import {name}; print({name}.__file__)" for name in PACKAGES))
    assert all(Path(line).is_relative_to(installed.parent) for line in lines.splitlines()), lines


def test_every_command_prints_its_help(installed: Path) -> None:
    commands = help_commands()
    assert ("rerank", "serve") in commands
    with ThreadPoolExecutor(max_workers=2) as pool:
        helps = pool.map(lambda command: run(installed / command[0], *command[1:], "--help"), commands)
        assert [command for command, text in zip(commands, helps, strict=True) if "--help" not in text] == []
