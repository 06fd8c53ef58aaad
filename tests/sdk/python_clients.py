"""Reranks with one client: python python_clients.py CLIENT BASE_URL MODEL. Prints {"version", "results"} as JSON.

It runs in an environment that has the client, but neither this project nor its packages. Every client asks for the best
two of DOCUMENTS; `results` are [index, score] pairs, or what the client raised is `error`.
"""

import json
import math
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

QUERY = "how long does a flea live"
DOCUMENTS = ["relevance 1", "relevance 3", "relevance 2"]
TOP_N = 2
KEY = "unused"

#: Pairs of index and score, best first.
Results = list[tuple[int, float]]
CLIENTS: dict[str, tuple[str, Callable[[str, str], Results]]] = {}


def client(name: str, package: str) -> Callable[[Callable[[str, str], Results]], Callable[[str, str], Results]]:
    """Registers a function of base URL and model under the name of its client."""

    def register(function: Callable[[str, str], Results]) -> Callable[[str, str], Results]:
        CLIENTS[name] = package, function
        return function

    return register


def pairs(results: Any) -> Results:
    return [(result.index, result.relevance_score) for result in results]


def by_text(found: Any, text: Callable[[Any], str], score: Callable[[Any], float]) -> Results:
    """For clients that return documents without their index."""
    return [(DOCUMENTS.index(text(result)), score(result)) for result in found]


@client("cohere v2", "cohere")
def cohere_v2(base_url: str, model: str) -> Results:
    import cohere

    reply = cohere.ClientV2(KEY, base_url=base_url).rerank(model=model, query=QUERY, documents=DOCUMENTS, top_n=TOP_N)
    return pairs(reply.results)


@client("cohere v2 async", "cohere")
def cohere_v2_async(base_url: str, model: str) -> Results:
    import asyncio

    import cohere

    async def call() -> Results:
        reply = await cohere.AsyncClientV2(KEY, base_url=base_url).rerank(
            model=model, query=QUERY, documents=DOCUMENTS, top_n=TOP_N, max_tokens_per_doc=512
        )
        return pairs(reply.results)

    return asyncio.run(call())


@client("cohere v1", "cohere")
def cohere_v1(base_url: str, model: str) -> Results:
    import cohere

    documents = [{"text": text} for text in DOCUMENTS]
    reply = cohere.Client(KEY, base_url=base_url).rerank(
        model=model, query=QUERY, documents=documents, top_n=TOP_N, return_documents=True
    )
    assert [result.document.text for result in reply.results] == [DOCUMENTS[result.index] for result in reply.results]
    return pairs(reply.results)


@client("langchain-cohere", "langchain-cohere")
def langchain_cohere(base_url: str, model: str) -> Results:
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document

    ranker = CohereRerank(base_url=base_url, cohere_api_key=KEY, model=model, top_n=TOP_N)
    found = ranker.compress_documents([Document(page_content=text) for text in DOCUMENTS], QUERY)
    return by_text(found, lambda document: document.page_content, lambda document: document.metadata["relevance_score"])


@client("langchain-community Jina", "langchain-community")
def langchain_jina(base_url: str, model: str) -> Results:
    from langchain_community.document_compressors import jina_rerank

    jina_rerank.JINA_API_URL = f"{base_url}/v1/rerank"  # it has no setting
    ranker = jina_rerank.JinaRerank(jina_api_key=KEY, model=model, top_n=TOP_N)
    return [(result["index"], result["relevance_score"]) for result in ranker.rerank(DOCUMENTS, QUERY)]


def llama_index(ranker: Any) -> Results:
    from llama_index.core.schema import NodeWithScore, TextNode

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
    found = ranker.postprocess_nodes(nodes, query_str=QUERY)
    return by_text(found, lambda node: node.node.get_content(), lambda node: node.score)


@client("llama-index Cohere", "llama-index-postprocessor-cohere-rerank")
def llama_index_cohere(base_url: str, model: str) -> Results:
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    return llama_index(CohereRerank(api_key=KEY, base_url=base_url, model=model, top_n=TOP_N))


@client("llama-index Jina", "llama-index-postprocessor-jinaai-rerank")
def llama_index_jina(base_url: str, model: str) -> Results:
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    return llama_index(JinaRerank(api_key=KEY, base_url=f"{base_url}/v1", model=model, top_n=TOP_N))


@client("llama-index TEI", "llama-index-postprocessor-tei-rerank")
def llama_index_tei(base_url: str, model: str) -> Results:
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    return llama_index(TextEmbeddingInference(base_url=base_url, top_n=TOP_N))


def haystack(ranker: Any, **options: Any) -> Results:
    from haystack import Document

    if hasattr(ranker, "warm_up"):
        ranker.warm_up()
    found = ranker.run(query=QUERY, documents=[Document(content=text) for text in DOCUMENTS], top_k=TOP_N)
    return by_text(found["documents"], lambda document: document.content, lambda document: document.score)


def secret() -> Any:
    from haystack.utils import Secret

    return Secret.from_token(KEY)


@client("haystack Cohere", "cohere-haystack")
def haystack_cohere(base_url: str, model: str) -> Results:
    from haystack_integrations.components.rankers.cohere import CohereRanker

    return haystack(CohereRanker(model=model, api_key=secret(), api_base_url=base_url))


@client("haystack Jina", "jina-haystack")
def haystack_jina(base_url: str, model: str) -> Results:
    from haystack_integrations.components.rankers.jina import JinaRanker

    return haystack(JinaRanker(model=model, api_key=secret(), base_url=f"{base_url}/v1/rerank"))


@client("haystack TEI", "huggingface-api-haystack")
def haystack_tei(base_url: str, model: str) -> Results:
    from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

    return haystack(HuggingFaceTEIRanker(url=base_url, token=secret()))


@client("haystack vLLM", "vllm-haystack")
def haystack_vllm(base_url: str, model: str) -> Results:
    from haystack_integrations.components.rankers.vllm import VLLMRanker

    return haystack(VLLMRanker(model=model, api_key=secret(), api_base_url=f"{base_url}/v1"))


@client("voyageai", "voyageai")
def voyage(base_url: str, model: str) -> Results:
    import voyageai

    reply = voyageai.Client(api_key=KEY, base_url=f"{base_url}/v1").rerank(QUERY, DOCUMENTS, model=model, top_k=TOP_N)
    assert [result.document for result in reply.results] == [DOCUMENTS[result.index] for result in reply.results]
    return pairs(reply.results)


@client("pinecone", "pinecone")
def pinecone(base_url: str, model: str) -> Results:
    from pinecone import Pinecone

    inference = Pinecone(api_key=KEY, host=f"{base_url}/pinecone").inference
    reply = inference.rerank(model=model, query=QUERY, documents=DOCUMENTS, top_n=TOP_N)
    return [(result.index, result.score) for result in reply.data]


def probability(logit: float) -> float:
    """What applications make of the logits of NIM."""
    return 1 / (1 + math.exp(-logit))


@client("langchain-nvidia-ai-endpoints", "langchain-nvidia-ai-endpoints")
def langchain_nvidia(base_url: str, model: str) -> Results:
    from langchain_core.documents import Document
    from langchain_nvidia_ai_endpoints import NVIDIARerank

    ranker = NVIDIARerank(base_url=f"{base_url}/v1", model=model, top_n=TOP_N, api_key=KEY)
    found = ranker.compress_documents([Document(page_content=text) for text in DOCUMENTS], QUERY)

    def score(document: Any) -> float:
        return probability(document.metadata["relevance_score"])

    return by_text(found, lambda document: document.page_content, score)


def litellm(provider: str, base_url: str, model: str, **options: Any) -> Results:
    import litellm as package

    asked = {"query": QUERY, "documents": DOCUMENTS, "top_n": TOP_N, "api_base": base_url, "api_key": KEY}
    reply = package.rerank(model=f"{provider}/{model}", **asked, **options)
    return [(result["index"], result["relevance_score"]) for result in reply.results]


def rerankers(provider: str, url: str, model: str) -> Results:
    from rerankers.models.api_rankers import APIRanker

    found = APIRanker(model, KEY, provider, url=url).rank(QUERY, DOCUMENTS).results  # it always asks for all
    return [(result.document.doc_id, result.score) for result in found][:TOP_N]


for provider in ("cohere", "jina_ai", "hosted_vllm", "huggingface", "infinity", "voyage"):
    path = "/v1" if provider == "jina_ai" else ""
    client(f"litellm {provider}/", "litellm")(
        lambda base_url, model, provider=provider, path=path: litellm(provider, base_url + path, model)
    )
client("litellm nvidia_nim/ranking/", "litellm")(
    lambda base_url, model: [
        (index, probability(logit)) for index, logit in litellm("nvidia_nim/ranking", base_url, model)
    ]
)
client("litellm infinity/, return_documents=False", "litellm")(
    lambda base_url, model: litellm("infinity", base_url, model, return_documents=False)
)
for name, provider, path in (
    ("Cohere", "cohere", "/v1/rerank"),
    ("Jina", "jina", "/v1/rerank"),
    ("TEI", "text-embeddings-inference", "/rerank"),
):
    client(f"rerankers {name}", "rerankers")(
        lambda base_url, model, provider=provider, path=path: rerankers(provider, base_url + path, model)
    )


@client("openapi-python-client", "openapi-python-client")
def openapi_python_client(base_url: str, model: str) -> Results:
    """Of the client that it generates from the service's own description."""
    import subprocess
    from importlib import import_module
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        generator = [f"{sys.prefix}/bin/openapi-python-client", "generate", "--meta", "none"]
        generator += ["--url", f"{base_url}/openapi.json", "--output-path", f"{folder}/generated"]
        subprocess.run(generator, check=True, stdout=subprocess.DEVNULL)
        sys.path.insert(0, folder)
        call, models = import_module("generated.api.default.post_v2_rerank"), import_module("generated.models")
        body = models.DocumentsRequest(query=QUERY, documents=DOCUMENTS, model=model, top_n=TOP_N)
        return pairs(call.sync(client=import_module("generated.client").Client(base_url=base_url), body=body).results)


@client("openapi-generator java", "openapi-generator-cli")
def openapi_generator_java(base_url: str, model: str) -> Results:
    """Of the Java client that it generates from the service's description. The generator's jar has what it needs."""
    import subprocess
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import openapi_generator_cli

    jar = str(Path(openapi_generator_cli.__file__).with_name("openapi-generator.jar"))
    sources = Path(__file__).with_name("java")
    with TemporaryDirectory() as folder:
        generator = ["java", "-jar", jar, "generate", "-g", "java", "--library", "native", "-o", f"{folder}/generated"]
        generator += ["-i", f"{base_url}/openapi.json", "--additional-properties"]
        generator += ["generateAliasAsModel=true,openApiNullable=false,hideGenerationTimestamp=true"]
        subprocess.run(generator, check=True, stdout=subprocess.DEVNULL)
        files = [*sources.rglob("*.java"), *Path(folder, "generated/src/main").rglob("*.java")]
        subprocess.run(["javac", "-nowarn", "-proc:none", "-cp", jar, "-d", f"{folder}/classes", *files], check=True)
        command = ["java", "-cp", f"{folder}/classes:{jar}", "Rerank", base_url, model, QUERY, str(TOP_N), *DOCUMENTS]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [(index, score) for index, score in json.loads(done.stdout)]


def main(name: str, base_url: str, model: str) -> None:
    """Runs one client and prints what it returned or raised."""
    package, function = CLIENTS[name]
    answer: dict[str, Any] = {"version": version(package)}
    try:
        answer["results"] = function(base_url, model)
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
