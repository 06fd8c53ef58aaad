"""Imports: a module imports only from its own layer or a lower one, and the packages do not import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Modules and folders of `rerank`, from the lowest layer to the highest.
LAYERS = [
    "errors files json_files losses names profiles text_table types v1 validation yaml_files",
    "config manifest bundled readers inference_servers",
    "collections prompting",
    "models",
    "rankers retrieval",
    "engine",
    "registry",
    "reranker unordered",
    "access telemetry service client load_test grpc http inspector ray_serve",
    "commands",
]
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer.split()}
FOLDERS = {"rerank": "rerank", "rerank_eval": "eval/rerank_eval", "rerank_training": "training/rerank_training"}
#: Package → the packages that it must not import.
SISTERS = {
    "rerank": {"rerank_training", "rerank_eval"},
    "rerank_training": {"rerank_eval"},
    "rerank_eval": {"rerank_training"},
}


def imported_modules(path: Path) -> Iterator[str]:
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
