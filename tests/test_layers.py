"""Imports: layers are imported downwards, and nothing in a circle."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Modules and folders of `rerank`, from the lowest layer to the highest.
LAYERS = [
    "errors names v1",
    "util",
    "profiles types",
    "checkpoints inference_servers readers",
    "config collections prompting",
    "models",
    "retrieval",
    "rankers",
    "engine",
    "reranking",
    "access",
    "service",
    "protobuf",
    "telemetry client",
    "ports",
    "commands",
    "integrations",
]
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer.split()}
FOLDERS = {"rerank": "rerank", "rerank_eval": "eval/rerank_eval", "rerank_training": "training/rerank_training"}
#: Package → the packages that it must not import.
SISTERS = {"rerank": {"rerank_training", "rerank_eval"}, "rerank_eval": {"rerank_training"}}


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    return tuple(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the module's full name"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def python_files(package: str) -> list[Path]:
    return [
        path for path in sorted((ROOT / package).rglob("*.py")) if "v1" not in path.relative_to(ROOT / package).parts
    ]


def test_modules_import_only_from_their_own_or_a_lower_layer() -> None:
    for path in python_files("rerank"):
        here = path.relative_to(ROOT / "rerank").with_suffix("").parts[0]
        for module in imported_modules(path):
            there = module.split(".")[1] if module.startswith("rerank.") else ""
            if here in LAYER_OF and there in LAYER_OF:
                assert LAYER_OF[there] <= LAYER_OF[here], f"{path} imports rerank.{there}, which is above rerank.{here}"


def test_every_module_has_a_layer() -> None:
    modules = {path.relative_to(ROOT / "rerank").with_suffix("").parts[0] for path in python_files("rerank")}
    assert modules - {"__init__"} <= LAYER_OF.keys()


def test_packages_do_not_import_each_other() -> None:
    for package, sisters in SISTERS.items():
        for path in python_files(FOLDERS[package]):
            found = {module.split(".")[0] for module in imported_modules(path)} & sisters
            assert not found, f"{path} imports {', '.join(found)}"


def own_modules() -> dict[str, Path]:
    """Full name → file of every module of the packages, of the scripts and of the tests."""
    folders = FOLDERS | {"scripts": "scripts", "tests": "tests"}
    modules = {}
    for package, folder in folders.items():
        for path in python_files(folder):
            parts = (package, *path.relative_to(ROOT / folder).with_suffix("").parts)
            modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def imports_of(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module → the modules that it imports, inside functions or under TYPE_CHECKING too."""
    return {name: {other for other in imported_modules(path) if other in modules} for name, path in modules.items()}


def package_of(module: str) -> str:
    """The package of a module, such as rerank.ports.grpc; the module itself at the root of `rerank` or of its ports."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[:2] in (["rerank", "ports"], ["rerank", "integrations"]) else 2])


def reached_from(package: str) -> set[str]:
    """The modules of `rerank` that a package's modules import, directly or through others."""
    imports = imports_of({name: path for name, path in own_modules().items() if name.startswith("rerank.")})
    reached: set[str] = set()
    found = {name for name in imports if name.startswith(package)}
    while found:
        reached |= found
        found = set[str]().union(*(imports[name] for name in found)) - reached
    return reached


def test_client_reaches_nothing_that_only_a_service_needs() -> None:
    of_service = ("rerank.service", "rerank.ports", "rerank.reranking", "rerank.engine", "rerank.models")
    reached = reached_from("rerank.client")
    assert len(reached) > 10
    assert not [name for name in reached if name.startswith(of_service)]


def test_ports_and_integrations_do_not_import_each_other() -> None:
    """An integration is a user of the ports."""
    folders = {
        f"rerank.{layer}.{folder.name}"
        for layer in ("ports", "integrations")
        for folder in (ROOT / "rerank" / layer).iterdir()
        if folder.is_dir()
    }
    for name, found in imports_of(own_modules()).items():
        here = package_of(name)
        for there in {package_of(other) for other in found} & folders - {here}:
            is_user = here.startswith("rerank.integrations.") and there.startswith("rerank.ports.")
            assert here not in folders or is_user, f"{name} imports {there}"


def test_no_packages_of_rerank_import_each_other_in_a_circle() -> None:
    modules = {name: path for name, path in own_modules().items() if name.startswith("rerank.")}
    named = {name for name, path in modules.items() if path.name == "__init__.py"}
    graph: dict[str, set[str]] = {}
    for name, imported in imports_of(modules).items():
        here = package_of(name)
        graph.setdefault(here, set()).update(package_of(other) for other in imported - named)
        graph[here].discard(here)
    fail_if_circular(graph)


def fail_if_circular(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A package, which its modules may import, is named by `from package import module` without being needed."""
    modules = own_modules()
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    fail_if_circular(
        {name: package - packages for name, package in imports_of(modules).items() if name not in packages}
    )
