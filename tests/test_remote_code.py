"""No command runs Python code that a checkpoint brings: transformers would ask on standard input, or just run it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOADERS = {"AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "LlamaTokenizer", "SentenceTransformer"}


def loading_calls() -> Iterator[tuple[str, ast.Call]]:
    """Each call that loads a checkpoint with transformers, with its place."""
    for folder in ("rerank", "eval", "training", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and loader(node.func) in LOADERS:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def loader(function: ast.expr) -> str:
    """The class of `CLASS.from_pretrained`, and of `SentenceTransformer` itself; empty for other functions."""
    if isinstance(function, ast.Attribute) and function.attr == "from_pretrained":
        return ast.unparse(function.value)
    return function.id if isinstance(function, ast.Name) and function.id == "SentenceTransformer" else ""


def refuses_remote_code(call: ast.Call) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return given.get("trust_remote_code", given.get(None)) in ("False", "options")  # `load_tokenizer` adds it to these


def test_every_checkpoint_is_loaded_without_its_code() -> None:
    calls = list(loading_calls())
    assert len(calls) > 10
    assert not [place for place, call in calls if not refuses_remote_code(call)]
