"""A module may import only from its own layer or from one to its left, and `rerank` from no sister package."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = [
    "errors losses types v1",
    "config files manifest bundled",
    "collections prompting",
    "models",
    "rankers retrieval",
    "engine",
    "registry",
    "reranker",
    "service client",
    "commands",
]
RANK = {name: place for place, layer in enumerate(LAYERS) for name in layer.split()}
FOLDERS = {"rerank": "rerank", "rerank_eval": "eval/rerank_eval", "rerank_training": "training/rerank_training"}
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


def test_imports_point_one_way() -> None:
    for path in python_files("rerank"):
        here = path.relative_to(ROOT / "rerank").with_suffix("").parts[0]
        for module in imported_modules(path):
            there = module.split(".")[1] if module.startswith("rerank.") else ""
            if here in RANK and there in RANK:
                assert RANK[there] <= RANK[here], f"{path} imports rerank.{there}, which sits above rerank.{here}"


def test_every_module_has_a_layer() -> None:
    modules = {path.relative_to(ROOT / "rerank").with_suffix("").parts[0] for path in python_files("rerank")}
    assert modules - {"__init__"} <= RANK.keys()


def test_sister_packages_are_not_imported() -> None:
    for package, sisters in SISTERS.items():
        for path in python_files(FOLDERS[package]):
            found = {module.split(".")[0] for module in imported_modules(path)} & sisters
            assert not found, f"{path} imports {', '.join(found)}"
