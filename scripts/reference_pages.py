"""Writes the tables of docs/reference/settings.md, commands.md and http.md into the checkout: `make reference`.

A page has the place of each table between two comments: what the table is of, and its end. The tables come from the
docstrings of the settings, from the help of the commands, and from the document of the HTTP port.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click

from rerank.ports.http.apis.table import rerank_apis
from rerank.ports.http.description import openapi

ROOT = Path(__file__).parents[1]
PAGES = tuple(ROOT / "docs" / "reference" / name for name in ("settings.md", "commands.md", "http.md"))
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_PLACE = re.compile(r"<!-- of ([\w.]+) -->\n.*?<!-- end -->", re.DOTALL)
#: The examples at the end of a command's help.
_EXAMPLE = re.compile(r"^Example:\n((?:  .+\n)+)", re.MULTILINE)
#: An attribute in a docstring, or several of them, and its text, which may go on in lines that are indented further.
_ATTRIBUTE = re.compile(r"^    ([\w, ]+): (.*(?:\n     +.*)*)", re.MULTILINE)


def with_tables(page: str) -> str:
    """The text of a page with its tables as they are now."""
    return _PLACE.sub(lambda place: f"<!-- of {place[1]} -->\n\n{_content(place[1])}\n\n<!-- end -->", page)


def _content(name: str) -> str:
    match name:
        case "commands":
            return _commands()
        case "http":
            return "\n".join(_http())
    module, _, class_name = name.rpartition(".")
    return "\n".join(_settings(getattr(importlib.import_module(module), class_name)))


def _settings(settings: type[BaseModel]) -> Iterator[str]:
    """Yields the first paragraph of a docstring, the names of its base classes, and a table of its settings."""
    text = inspect.cleandoc(settings.__doc__ or "")
    first, _, attributes = text.partition("\n\nAttributes:\n")
    yield " ".join(first.split())
    bases = [
        f"`{base.__name__}`" for base in settings.__bases__ if base.__name__ not in ("Settings", "ABC", "BaseModel")
    ]
    if bases:
        yield f"\nWith the settings of {' and '.join(bases)}."
    rows = [(names, " ".join(meaning.split())) for names, meaning in _ATTRIBUTE.findall(attributes)]
    if rows:
        yield from ("", "| Setting | Meaning |", "| --- | --- |")
        for names, meaning in rows:
            shown = ", ".join(f"`{name.strip()}`" for name in names.split(","))
            yield f"| {shown} | {_cell(meaning)} |"


def _commands() -> str:
    """The help of all commands of the package."""
    os.environ["COLUMNS"] = "80"
    sections = []
    for name, path in _PROJECT["scripts"].items():
        module, _, function = path.partition(":")
        (app,) = getattr(importlib.import_module(module), function).args  # partial(run, app)
        command = typer.main.get_command(app)
        context = typer.Context(command, info_name=name)
        sections.append(get_docs_for_click(obj=command, ctx=context, name=name, indent=1).strip())
    text = _EXAMPLE.sub(r"```text\n\1```\n", "\n\n".join(sections) + "\n")
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip()


def _http() -> Iterator[str]:
    """The paths, and the fields of their requests and replies."""
    document = openapi(rerank_apis(Mock()))
    yield from ("| Path | What | Request | Reply |", "| --- | --- | --- | --- |")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            request = _references(operation.get("requestBody", {}))
            reply = _references(operation["responses"]["200"])
            yield f"| `{method.upper()} {path}` | {_cell(operation['summary'])} | {request} | {reply} |"
    for name, schema in document["components"]["schemas"].items():
        if fields := schema.get("properties"):
            yield from ("", f"## {name}", "", "| Field | Meaning |", "| --- | --- |")
        elif _references(schema):
            yield from ("", f"## {name}", "", f"{schema['type'].capitalize()} of {_references(schema)}.")
        if fields:
            required = schema.get("required", ())
            for field, description in fields.items():
                needed = " (required)" if field in required else ""
                yield f"| `{field}`{needed} | {_cell(description.get('description', ''))} |"


def _references(part: dict[str, Any]) -> str:
    """The names of the schemas in the content of a request or a reply."""
    names = re.findall(r"#/components/schemas/(\w+)", str(part))
    return ", ".join(f"[{name}](#{name.lower()})" for name in names)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Writes the pages."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
