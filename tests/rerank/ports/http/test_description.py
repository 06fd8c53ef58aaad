"""What the HTTP port says of the service, health, models, limits and its interface, and headers of its answers."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import pytest

from rerank import __version__
from rerank.ports.http.app import header_value
from rerank.rankers.failed import FailedRanker
from tests.fakes import NumberRanker
from tests.serving import http_service


def test_health_is_503_if_the_default_model_is_not_served():
    broken = FailedRanker("broken", NumberRanker().info, "failed its self-test")
    with http_service({"broken": broken, "number": NumberRanker()}) as served:
        reply = served.http.get("/health")
        asked = [{"query": "q", "texts": ["a"], "model": model} for model in ("", "number")]
        by_default, by_name = (served.http.post("/rerank", body) for body in asked)
    assert (reply.status, reply.json["reason"]) == (503, "failed its self-test")
    assert (by_default.status, by_name.status) == (400, 200)


def test_info_has_the_limits_by_the_names_of_tei(http):
    info = http.get("/info").json
    assert info["max_client_batch_size"] == 1000
    assert info["payload_limit"] == 16 * 1024 * 1024
    assert "reranker" in info["model_type"]
    assert info["version"] == __version__


def test_openapi_names_every_path_and_every_reference_resolves(http):
    document = http.get("/openapi.json").json
    assert set(document["paths"]) == {
        "/v1/rerank", "/v2/rerank", "/rerank", "/v1/ranking", "/v1/score", "/score",
        "/voyage/v1/rerank", "/pinecone/rerank", "/search",
        "/v1/models", "/info", "/meta", "/health", "/.well-known/ready",
    }  # fmt: skip
    # Relative to the document: behind a proxy with a path prefix, the paths are below the prefix.
    assert urljoin("https://host/prefix/openapi.json", document["servers"][0]["url"]) == "https://host/prefix/"
    assert {node["$ref"] for node in nodes(document) if "$ref" in node} <= {
        f"#/components/schemas/{name}" for name in document["components"]["schemas"]
    }


def nodes(document: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON document."""
    if isinstance(document, dict):
        yield document
    values = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    for value in values:
        yield from nodes(value)


def test_an_object_beside_other_types_in_openapi_has_named_fields(http):
    """openapi-generator names alternatives by their types: `Map<String, Object>` is no name, and Java stops there."""
    unions = [node["anyOf"] for node in nodes(http.get("/openapi.json").json) if "anyOf" in node]
    choices = [[kind for kind in union if kind.get("type") != "null"] for union in unions]
    objects = [kind for kinds in choices if len(kinds) > 1 for kind in kinds if kind.get("type") == "object"]
    assert objects
    assert all("text" in kind["properties"] for kind in objects)


def test_every_operation_of_openapi_has_a_name_of_its_own(http):
    """Generated clients name their functions so; one that changes breaks their programs."""
    paths = http.get("/openapi.json").json["paths"]
    names = {operation["operationId"]: path for path, methods in paths.items() for operation in methods.values()}
    assert len(names) == len(paths)
    assert names["post_v2_rerank"] == "/v2/rerank"
    assert names["get_well_known_ready"] == "/.well-known/ready"


def test_no_enum_of_openapi_repeats_a_value_in_another_case(http):
    """Generators of clients, such as openapi-python-client, make a name of each value and stop at equal ones."""

    enums = [node["enum"] for node in nodes(http.get("/openapi.json").json) if "enum" in node]
    found = [[str(value).upper() for value in enum] for enum in enums]
    assert found
    assert all(len(set(enum)) == len(enum) for enum in found)


#: What h11 and proxies take: visible ASCII, and spaces inside.
VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")


@pytest.mark.parametrize(
    "text", ["", " ", " a ", "a\tb\n", "\x7f", "\x00", "é\ud83d", "x" * 1999 + " y", "\u2028", '"\\', "a " * 9999]
)
def test_every_text_becomes_a_value_that_servers_take(text):
    value = header_value(text)
    assert VALUE.fullmatch(value), value
    assert len(value) <= 2000
