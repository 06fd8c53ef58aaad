"""Real clients of other rerank APIs rerank with this service, after a change of the base URL.

`make sdk-tests` installs each client in a separate environment, which has none of our packages, runs these tests and
writes the table in docs/integrations.md.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes import NumberRanker
from tests.serving import http_service

pytestmark = pytest.mark.sdk

HERE = Path(__file__).parent
#: The documents' relevance is the number in them; the clients ask for the best two of 1, 3 and 2.
EXPECTED = [1, 2]
TIMEOUT_S = 280
#: Around the table of the page.
BEGIN, END = "<!-- clients: written by make sdk-tests -->", "<!-- end of clients -->"


@dataclass(frozen=True)
class SDK:
    """A client: the environment that has it, how its base URL is set, and why it does not work if it does not."""

    environment: str
    setting: str
    problem: str = ""


SDKS = {
    "cohere v2": SDK("cohere", "`ClientV2(key, base_url=BASE)`, or `CO_API_URL`"),
    "cohere v2 async": SDK("cohere", "`AsyncClientV2(key, base_url=BASE)`"),
    "cohere v1": SDK("cohere", "`Client(key, base_url=BASE)`"),
    "langchain-cohere": SDK("langchain-cohere", "`CohereRerank(base_url=BASE)`"),
    "langchain-community Jina": SDK("frameworks", "none; replace `JINA_API_URL` of its module `jina_rerank`"),
    "llama-index Cohere": SDK("frameworks", "`CohereRerank(base_url=BASE)`"),
    "llama-index Jina": SDK("frameworks", "`JinaRerank(base_url=BASE/v1)`"),
    "llama-index TEI": SDK("frameworks", "`TextEmbeddingInference(base_url=BASE)`"),
    "haystack Cohere": SDK("frameworks", "`CohereRanker(api_base_url=BASE)`"),
    "haystack Jina": SDK("frameworks", "`JinaRanker(base_url=BASE/v1/rerank)`"),
    "haystack TEI": SDK("frameworks", "`HuggingFaceTEIRanker(url=BASE)`"),
    "haystack vLLM": SDK("frameworks", "`VLLMRanker(api_base_url=BASE/v1)`"),
    "litellm cohere/": SDK("frameworks", "`rerank(api_base=BASE)`"),
    "litellm jina_ai/": SDK("frameworks", "`rerank(api_base=BASE/v1)`"),
    "litellm hosted_vllm/": SDK("frameworks", "`rerank(api_base=BASE)`"),
    "litellm huggingface/": SDK("frameworks", "`rerank(api_base=BASE)`"),
    "litellm infinity/, return_documents=False": SDK("frameworks", "`rerank(api_base=BASE)`"),
    "litellm infinity/": SDK(
        "frameworks", "`rerank(api_base=BASE)`", "it asks for documents and wants them as texts, not as objects"
    ),
    "litellm voyage/": SDK("frameworks", "`rerank(api_base=BASE)`"),
    "litellm nvidia_nim/ranking/": SDK("frameworks", "`rerank(api_base=BASE)`"),
    "voyageai": SDK("vendors", "`Client(base_url=BASE/v1)`"),
    "pinecone": SDK("vendors", "`Pinecone(host=BASE/pinecone)`"),
    "langchain-nvidia-ai-endpoints": SDK("vendors", "`NVIDIARerank(base_url=BASE/v1)`"),
    "rerankers Cohere": SDK("frameworks", '`APIRanker(model, key, "cohere", url=BASE/v1/rerank)`'),
    "rerankers Jina": SDK("frameworks", '`APIRanker(model, key, "jina", url=BASE/v1/rerank)`'),
    "rerankers TEI": SDK("frameworks", '`APIRanker(model, key, "text-embeddings-inference", url=BASE/rerank)`'),
    "openapi-python-client": SDK("generators", "`generate --url BASE/openapi.json`; then `Client(base_url=BASE)`"),
    "openapi-generator java": SDK(
        "generators", "`generate -g java -i BASE/openapi.json`; `generateAliasAsModel=true` with `--library native`"
    ),
    "npm cohere-ai v2": SDK("node", "`new CohereClientV2({token, baseUrl: BASE})`"),
    "npm cohere-ai v1": SDK("node", "`new CohereClient({token, baseUrl: BASE})`"),
    "npm @langchain/cohere": SDK("node", "`new CohereRerank({client: new CohereClient({environment: BASE})})`"),
    "npm ai with @ai-sdk/cohere": SDK("node", "`createCohere({baseURL: BASE/v2})`"),
}


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """A service whose model `number` is perfect."""
    with http_service({"number": NumberRanker()}) as served:
        yield f"http://{served.http.address}"


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[dict[str, list[str]]]:
    """The rows of the table: client, version, setting. Written if all clients ran and a file is given."""
    found: dict[str, list[str]] = {}
    yield found
    path: Path | None = request.config.getoption("--sdk-table")
    if path is not None and found.keys() == SDKS.keys():
        write_table(path, ["Client", "Version", "Base URL"], list(found.values()))


@pytest.mark.parametrize("name", SDKS)
def test_client_gets_the_best_documents_in_order(name, base_url, rows, request):
    sdk = SDKS[name]
    folder = request.config.getoption("--sdk")
    if sdk.environment == "node":
        command = ["node", str(HERE / "node_clients.mjs"), name, base_url, "number", str(folder.absolute() / "node")]
    else:
        python = folder / sdk.environment / "bin/python"
        command = [str(python), str(HERE / "python_clients.py"), name, base_url, "number"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    failed = f"; fails: {sdk.problem}" if "error" in answer else ""
    rows[name] = [f"`{name}`", answer["version"], f"{sdk.setting}{failed}"]
    if sdk.problem:
        assert "error" in answer, f"{name} works now: remove its problem from the table"
        return
    assert "error" not in answer, answer["error"]
    assert [index for index, _ in answer["results"]] == EXPECTED
    scores = [score for _, score in answer["results"]]
    assert 1 >= scores[0] > scores[1] >= 0


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Replaces what is between BEGIN and END. Raises: ValueError if the file does not have both."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{path} does not have the lines {BEGIN} and {END}")
    lines = [_line(columns), _line(["---"] * len(columns)), *map(_line, rows)]
    path.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", encoding="utf-8")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
