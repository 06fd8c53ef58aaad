"""The files of the inspector's pages: what they may load and run, and that nothing is missing."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rerank.integrations.inspector.pages import page_routes

STATIC = Path(str(files("rerank.integrations.inspector") / "static"))
PAGES = sorted(STATIC.glob("*.html"))
SCRIPTS = sorted(STATIC.glob("*.js"))


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


def directives(policy: str) -> dict[str, list[str]]:
    return {parts[0]: parts[1:] for parts in (directive.split() for directive in policy.split(";"))}


@pytest.mark.parametrize("path", ["/", "/inspector/static/main.js", "/inspector/static/inspector.css"])
def test_page_runs_and_loads_only_files_of_its_origin(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = directives(headers["content-security-policy"])
    assert policy["default-src"] == ["'none'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert policy["trusted-types"] == ["'none'"]
    for name in ("script-src", "style-src", "connect-src", "img-src"):
        assert policy[name] == ["'self'"]
    for name in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[name] == ["'none'"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_no_inline_script_or_style_and_every_file_that_it_names(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert re.search(r"<style|style=|\son\w+=|javascript:", html) is None
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    named = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert named
    for path in named:
        assert path.startswith("/inspector/static/")
        assert (STATIC / path.removeprefix("/inspector/static/")).is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_makes_no_markup_from_texts_and_imports_what_exists(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    forbidden = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", code)
    assert forbidden is None, f"{script.name} uses {forbidden}"
    for name, module in re.findall(r'import \{ ([\w, ]+) \} from "\./([\w.]+)"', code):
        exported = (STATIC / module).read_text(encoding="utf-8")
        for word in name.split(", "):
            assert re.search(rf"export (async )?(function|const|class) {word}\b", exported), f"{module} has no {word}"
    assert len(code.splitlines()) < 400
