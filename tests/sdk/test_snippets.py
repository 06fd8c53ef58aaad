"""The snippets of the documentation that use a client of others run, with that client."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rerank.config.http import HttpConfig
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from tests.http_client import serving_http
from tests.serving import reranker_of
from tests.test_doc_commands import HTTP_ADDRESS, SNIPPETS, imports

pytestmark = pytest.mark.sdk

#: Package → the environment of `make sdk-tests` that has it.
ENVIRONMENTS = {"cohere": "cohere"}
FOREIGN = [
    pytest.param(*each.values, imports(str(each.values[1])) & ENVIRONMENTS.keys(), id=each.id)
    for each in SNIPPETS
    if imports(str(each.values[1])) & ENVIRONMENTS.keys() and HTTP_ADDRESS in str(each.values[1])
]


@pytest.mark.parametrize(("page", "snippet", "packages"), FOREIGN)
def test_snippet_prints_the_answer(
    page: str, snippet: str, packages: set[str], encoder: Encoder, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.config.getoption("--sdk")
    python = folder / ENVIRONMENTS[packages.pop()] / "bin/python"
    reranker = reranker_of(encoder, {"default": IdentityRanker()}, http=HttpConfig(listen="127.0.0.1:0"))
    with serving_http(reranker) as (_, client):
        program = snippet.replace(HTTP_ADDRESS, client.address)
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in ("0", "1")
