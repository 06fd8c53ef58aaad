"""The inspector's routes on the HTTP port of a service."""

import re
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from rerank.access.keys import CallerLimits, add_key
from rerank.collections import pydoc
from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.integrations.inspector.routes import page_routes
from rerank.service.startup import check_before_loading
from tests.fakes import NumberRanker
from tests.serving import HTTP, http_service

STATIC = Path(str(files("rerank.integrations.inspector") / "static"))
PAGES = sorted(STATIC.glob("*.html"))
SCRIPTS = sorted(STATIC.glob("*.js"))


def test_page_learns_what_the_service_offers(index):
    with http_service({"number": NumberRanker()}, index, http=HTTP | {"qrels": "pydoc"}) as served:
        assert b"<title>Inspector" in served.http.get("/").body
        offered = served.http.get("/inspector/service").json
        assert [model["name"] for model in offered["service"]["models"]] == ["number"]
        assert offered["service"]["index"]["passages"] == "12"
        texts = [query.text for query in pydoc.queries()]
        assert offered["judged_queries"] == texts
        grades = served.http.get(f"/inspector/judgements?query={quote(texts[0].upper())}").json["grades"]
        assert set(grades.values()) <= {0, 1, 2}
        assert 2 in grades.values()


def test_without_a_key_only_the_page_itself_is_served(tmp_path):
    key = add_key(tmp_path / "keys", "tester", CallerLimits())
    with http_service(keys=tmp_path / "keys") as served:
        assert served.http.get("/").status == 200
        for path in ("/inspector/service", "/inspector/judgements?query=q"):
            assert served.http.get(path).status == 401
            assert served.http.send("GET", path, headers={"authorization": f"Bearer {key}"}).status == 200


def test_judgements_that_cannot_be_read_are_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "qrels.txt").write_text("1 0 a 1\n", encoding="utf-8")
    settings = HTTP | {"http": HTTP | {"qrels": str(tmp_path / "qrels.txt")}}
    with pytest.raises(ConfigError, match="the file's name has another ending"):
        check_before_loading(ServiceConfig.model_validate(settings))


def test_behind_a_proxy_with_a_path_prefix_all_files_and_calls_stay_below_the_prefix():
    """The page was empty: it asked the root of the proxy for its scripts."""
    app = Starlette(routes=[Mount("/search/rerank", routes=page_routes())])
    client = TestClient(app)
    page = client.get("/search/rerank/")
    loaded = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
    assert len(loaded) == 3
    for address in loaded:
        assert client.get(str(page.url.join(address))).status_code == 200
    for script in SCRIPTS:
        assert not re.findall(r"""(?:get|post|fetch)\(["'`]/|\["/""", script.read_text(encoding="utf-8")), script


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


@pytest.mark.parametrize("path", ["/", "/inspector/static/main.js", "/inspector/static/inspector.css"])
def test_page_runs_and_loads_only_files_of_its_origin(client, path):
    headers = client.get(path).headers
    directives = [directive.split() for directive in headers["content-security-policy"].split(";")]
    policy = {name: values for name, *values in directives}
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
def test_page_has_no_inline_script_or_style_and_every_file_that_it_names(page):
    html = page.read_text(encoding="utf-8")
    assert re.search(r"<style|style=|\son\w+=|javascript:", html) is None
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))
    named = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert named
    for path in named:
        assert path.startswith("inspector/static/")
        assert (STATIC / path.removeprefix("inspector/static/")).is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_makes_no_markup_from_texts_and_imports_what_exists(script):
    code = script.read_text(encoding="utf-8")
    forbidden = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", code)
    assert forbidden is None, f"{script.name} uses {forbidden}"
    for name, module in re.findall(r'import \{ ([\w, ]+) \} from "\./([\w.]+)"', code):
        exported = (STATIC / module).read_text(encoding="utf-8")
        for word in name.split(", "):
            assert re.search(rf"export (async )?(function|const|class) {word}\b", exported), f"{module} has no {word}"
    assert len(code.splitlines()) < 400
