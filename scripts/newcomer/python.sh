# shellcheck shell=bash
# Python: the names of the command line work, a mistake says what to do, and what a newcomer prints can be read.

# The file python.py, whose parts the steps below run: python_part PART.
write_python_parts() {
  cat >python.py <<'PYTHON'
import asyncio
import sys

from rerank import AsyncRerankClient, Query, RankOptions, RerankClient, Reranker, RerankError
from rerank.client import reply_table

QUERY = "how long does a flea live"
TEXTS = ["Deserts are dry.", "A flea lives a year."]


def refused(part, *expected):
    """What an error of rerank says; it must contain the expected words."""
    try:
        part()
    except RerankError as error:
        print(type(error).__name__, error)
        assert all(words in str(error) for words in expected), expected
    else:
        raise AssertionError(f"nothing was refused where {expected} was expected")


def client(address):
    with RerankClient(address) as client:
        print(client)
        print(reply_table(client.search(QUERY, first_stage="bm25", strategy="single", top_n=2)))
        reply = client.search(QUERY, first_stage="dense", depth=5, feedback="rocchio", model="pe-rank")
        print(reply.feedback)
        refused(lambda: client.rerank(QUERY, TEXTS, strategy="slidng"), "did you mean sliding?", "top-down")
        refused(lambda: client.search(QUERY, first_stage="bm52"), "did you mean bm25?", "hybrid-rrf")
        refused(lambda: client.rerank(QUERY, TEXTS, top_k=1), "did you mean top_n?")
        for model in ("default", "pe-rank"):
            refused(lambda: client.rerank(QUERY, TEXTS, instruction="medical", model=model), "no place for an instruction")
        assert client.rerank(QUERY, TEXTS, model="pe-rank", min_relevance=0.0).results[0].HasField("relevance")
        again = client.rerank(QUERY, TEXTS, model="pe-rank")
        assert again.execution.cached_vectors == 2, again.execution
        print([(model.name, model.reads_instruction) for model in client.list_models().models])
    refused(client.list_models, "is closed; make a new one")
    refused(lambda: RerankClient(f"http://{address}"), "speaks gRPC", "HOST:PORT")
    refused(lambda: AsyncRerankClient(address), "asyncio.run()")

    async def search():
        async with AsyncRerankClient(address) as client:
            return await client.search(QUERY, first_stage="bm25")

    assert asyncio.run(search()).results


def in_process():
    refused(lambda: Reranker("nope"), "default, pe-rank, identity")
    with Reranker("pe-rank") as reranker:
        ranking = reranker.rerank(QUERY, TEXTS, RankOptions(strategy="single"))
        print(repr(reranker), repr(ranking), ranking.trace)
        print(ranking)
        refused(lambda: reranker.rerank(QUERY, TEXTS, RankOptions(strategy="slidng")), "did you mean sliding?")
        assert reranker.rerank(QUERY, TEXTS).trace.cached_vectors == 2
        scores = reranker.predict([(QUERY, text) for text in TEXTS], batch_size=8, show_progress_bar=False, num_workers=0)
        assert scores[1] > scores[0], scores
    refused(lambda: reranker.rank(QUERY, TEXTS), "is closed; make a new one")
    with Reranker("identity") as reranker:
        refused(lambda: reranker.rerank(Query(QUERY, instruction="medical"), TEXTS), "instruction")


if len(sys.argv) > 1:
    client(sys.argv[1])
else:
    in_process()
PYTHON
}

http_names() {
  python - "$http_address" <<'PYTHON'
import json
import sys
import urllib.error
import urllib.request


def post(path, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{sys.argv[1]}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, dict(reply.headers), json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, {}, json.load(error)


status, _, reply = post("/search", {"query": "flea", "first_stage": "bm25", "strategy": "single"})
assert (status, reply["first_stage"]) == (200, "FIRST_STAGE_BM25"), reply
status, _, reply = post("/search", {"query": "flea", "first_stage": "bm52"})
assert status == 400 and "did you mean bm25?" in reply["message"], reply
status, _, reply = post("/v2/rerank", {"query": "flea", "documents": ["a"], "instruction": "medical"})
assert status == 400 and "no place for an instruction" in reply["message"], reply
body = {"model": "pe-rank", "query": "flea", "documents": ["An ant.", "A flea."], "min_relevance": 0.0}
headers = [post("/v2/rerank", body)[1] for _ in range(2)]
print([each["x-rerank-cached-vectors"] for each in headers])
assert headers[1]["x-rerank-cached-vectors"] == "2"
PYTHON
}

write_python_parts
step "names and mistakes in the Python client" output_has "rank +score +doc_id" python python.py "$address"
step "names and mistakes over HTTP" http_names
step "which models read an instruction" output_has "pe-rank.*refused" rerank models --target "$address"
step "names and mistakes in process" output_has "<Ranking: 2 results by pe-rank" python python.py
