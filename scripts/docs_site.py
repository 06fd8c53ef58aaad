"""Hook of mkdocs (`make docs`): pages outside docs/, and links that lead outside the site.

A link to a source file has no target on the site. It becomes a link into the repository if `repo_url` is set in
mkdocs.yml, and its text otherwise.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
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


def on_files(files: Files, config: Any, **_: object) -> Files:
    """Adds the pages outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, **_: object) -> str:
    """Makes the links of a page fit the site. Raises: PluginError if one leads to a file that does not exist."""
    source = page.file.src_uri
    folder = (ROOT / _SOURCES.get(source, f"docs/{source}")).parent
    return _LINK.sub(lambda link: _on_site(link, folder, source, config["repo_url"]), markdown)


def _on_site(link: re.Match[str], folder: Path, source: str, repository: str | None) -> str:
    """A link from the page of the file `source`, which is in `folder`."""
    image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    path = Path(os.path.normpath(folder / target))
    if not path.exists():
        raise PluginError(f"{source} links to {target}, which does not exist")
    inside = path.relative_to(ROOT).as_posix()
    if inside in PAGES or inside.startswith("docs/"):
        there = PAGES.get(inside, inside.removeprefix("docs/"))
        return f"{image}[{text}]({os.path.relpath(there, os.path.dirname(source) or '.')}{anchor})"
    return f"[{text}]({repository.rstrip('/')}/blob/HEAD/{inside}{anchor})" if repository else text
