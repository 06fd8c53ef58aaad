"""Hook of mkdocs (`make docs`): pages outside docs/, links that lead outside the site, help of the commands.

A link to a source file has no target on the site. It becomes a link into the repository if `repo_url` is set in
mkdocs.yml, and its text otherwise.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import typer
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from rerank.ports.http.apis.table import rerank_apis
from rerank.ports.http.description import openapi

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: File outside docs/ → its page on the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "reference/deploy.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}
#: A link or an image that is not a URL and leads to more than a heading of the same page: "[" text, target, anchor.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\\[\[\]])*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")
#: The examples at the end of a command's help.
_EXAMPLE = re.compile(r"^Example:\n((?:  .+\n)+)", re.MULTILINE)


def on_pre_build(config: Any, **_: object) -> None:
    """Writes the document of the HTTP port that reference/http.md shows."""
    document = ROOT / "build" / "openapi.json"
    document.parent.mkdir(exist_ok=True)
    document.write_text(json.dumps(openapi(rerank_apis(Mock()))), encoding="utf-8")


def on_files(files: Files, config: Any, **_: object) -> Files:
    """Adds the pages outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, **_: object) -> str:
    """Makes the links of a page fit the site. Raises: PluginError if one leads to a file that does not exist."""
    place = page.file.src_uri
    if place == "reference/commands.md":
        return f"{markdown}\n{_commands()}"
    folder = (ROOT / _SOURCES.get(place, f"docs/{place}")).parent
    return _LINK.sub(lambda link: _on_site(link, folder, place, config["repo_url"]), markdown)


def _commands() -> str:
    """The help of all commands of the package, as Markdown."""
    sections = []
    for name, path in PROJECT["scripts"].items():
        module, _, function = path.partition(":")
        (app,) = getattr(importlib.import_module(module), function).args  # partial(run, app)
        command = typer.main.get_command(app)
        context = typer.Context(command, info_name=name)
        sections.append(get_docs_for_click(obj=command, ctx=context, name=name, indent=1))
    return _EXAMPLE.sub(r"```text\n\1```\n", "\n".join(sections))


def _on_site(link: re.Match[str], folder: Path, place: str, repository: str | None) -> str:
    """A link from the page at `place`, whose source is in `folder`."""
    image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    path = Path(os.path.normpath(folder / target))
    if not path.exists():
        raise PluginError(f"{place} links to {target}, which does not exist")
    inside = path.relative_to(ROOT).as_posix()
    if inside in PAGES or inside.startswith("docs/"):
        there = PAGES.get(inside, inside.removeprefix("docs/"))
        return f"{image}[{text}]({os.path.relpath(there, os.path.dirname(place) or '.')}{anchor})"
    return f"[{text}]({repository.rstrip('/')}/blob/HEAD/{inside}{anchor})" if repository else text
