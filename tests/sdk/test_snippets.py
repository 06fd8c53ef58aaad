"""The snippets of the documentation that use a client of others run, with that client."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rerank.rankers.identity import IdentityRanker
from tests.doc_pages import blocks
from tests.serving import http_service, running_service
from tests.test_doc_commands import ADDRESS, HTTP_ADDRESS, PAGES, ROOT, SNIPPETS, imports

pytestmark = pytest.mark.sdk

#: Package → the environment of `make sdk-tests` that has it.
ENVIRONMENTS = {
    "cohere": "cohere",
    "haystack": "frameworks",
    "langchain_cohere": "langchain-cohere",
    "llama_index": "frameworks",
    "pyterrier": "pyterrier",
}
FOREIGN = [
    pytest.param(*snippet.values, packages, id=snippet.id)
    for snippet in SNIPPETS
    if (packages := imports(str(snippet.values[1])) & ENVIRONMENTS.keys())
    and re.search(f"{ADDRESS}|{HTTP_ADDRESS}", str(snippet.values[1]))
]
#: How the printed answers begin: with the place of the best document or its id, or with its text.
ANSWERS = ("0", "1", "A", "Deserts", "docno")


@pytest.mark.parametrize(("page", "snippet", "packages"), FOREIGN)
def test_snippet_prints_the_answer(page, snippet, packages, request):
    folder: Path = request.config.getoption("--sdk")
    environment = folder.absolute() / ENVIRONMENTS[packages.pop()]
    python, before = environment / "bin/python", ""
    if "from rerank" in snippet:  # this project's environment, then the package of the other
        (packages_of_it,) = environment.glob("lib/python3*/site-packages")
        python, before = Path(sys.executable), f"import sys; sys.path.append({str(packages_of_it)!r})\n"
    with http_service({"default": IdentityRanker(), "pe-rank": IdentityRanker()}) as served:
        program = before + snippet.replace(HTTP_ADDRESS, served.http.address).replace(ADDRESS, served.address)
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in ANSWERS


JAVASCRIPT = [
    pytest.param(snippet, id=page.name) for page in PAGES for snippet in blocks(page, "js") if "grpc" in snippet
]


@pytest.mark.parametrize("snippet", JAVASCRIPT)
def test_snippet_for_node_prints_the_answer(snippet, tmp_path, request):
    folder: Path = request.config.getoption("--sdk")
    (tmp_path / "node_modules").symlink_to(folder.absolute() / "node" / "node_modules")
    with running_service({"default": IdentityRanker()}) as served:
        (tmp_path / "client.mjs").write_text(snippet.replace(ADDRESS, served.address), encoding="utf-8")
        command = ["node", tmp_path / "client.mjs"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert (done.stdout, done.stderr) == ("d1\n", "")
