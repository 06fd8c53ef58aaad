"""Every reader names the file and the line that it cannot read, and says what is wrong there."""

import json

import pytest
from rerank_eval.collections import read_run

from rerank.errors import CollectionError
from rerank.readers.candidates import read_requests
from rerank.readers.qrels import read_qrels
from rerank.readers.queries import read_queries


def request(doc: object, **fields: object) -> bytes:
    query = {"text": "q?", "qid": 7}
    return json.dumps({"query": query, "candidates": [{"docid": 3, "score": 1.5, "doc": doc}]} | fields).encode()


#: A reader, and a first line that it reads.
RUN = (read_run, b"1 Q0 a 1 9 t")
QUERIES = (read_queries, b"1\tfine")
QRELS = (read_qrels, b"1 0 a 2")
BEIR_QRELS = (read_qrels, b"query-id\tcorpus-id\tscore")
REQUESTS = (read_requests, request("fine"))
SAME_ID = request("", candidates=[{"docid": 1, "doc": "d"}, {"docid": "1", "doc": "d"}])
HITS_OF_TWO = b'{"query": "q", "hits": [{"qid": 1, "docid": 2, "content": ""}, {"qid": 2, "docid": 3, "content": ""}]}'


@pytest.mark.parametrize(
    ("reader", "line", "problem"),
    [
        (RUN, b"1 a 1.0", "has 3 columns; expected query_id, Q0, doc_id, rank, score and tag"),
        (RUN, b"1 Q0 a 1 high t", "has 'high' as score; give a finite number"),
        (RUN, b"1 Q0 a 1 nan t", "has 'nan' as score; give a finite number"),
        (RUN, b"1\tQ0\t\t1\t2\tt", "has the query_id '1' and the doc_id ''; give both"),
        (RUN, b"1 Q0 \xff 1 2 t", "is not UTF-8"),
        (RUN, b"1 Q0 a 9 0.5 t", "repeats the passage 'a' of query '1' of line 1; keep one"),
        (QUERIES, b'{"text": "why"}', r"has no _id \(or query_id, qid, id\); found text"),
        (QUERIES, b"1 why", "has 1 columns; expected query_id, tab, text"),
        (QUERIES, b"1\twhy\tso", "has 3 columns; expected query_id, tab, text"),
        (QRELS, b"1 0 a", r"has 3 columns; expected TREC's four .*, or BEIR's three"),
        (QRELS, b"1 0 a 2 extra", "has 5 columns"),
        (QRELS, b"1 0 a two", "has the relevance 'two', which is not a whole number"),
        (BEIR_QRELS, b"1 0 a 2", "has 1 columns; expected TREC's four .*, or BEIR's three"),
        (BEIR_QRELS, b"1\ta\tscore", "has the relevance 'score'"),
        (BEIR_QRELS, b"1\ta\t0.5", r"has the relevance '0\.5'"),
        (BEIR_QRELS, b"1\ta\tinf", "has the relevance 'inf'"),
        (BEIR_QRELS, b"1\ta\t" + b"9" * 5000, r"has the relevance '9{12}\.\.\."),
        (BEIR_QRELS, b"\ta\t1", "has the query_id '' and the doc_id 'a'; give both"),
        (REQUESTS, b"[]", r"is \[\], which is not an object"),
        (REQUESTS, request("fine"), "has the query '7' of line 1; give it once"),
        (REQUESTS, request("", candidates=[{"docid": 1, "doc": "", "score": float("nan")}]), ".*nan as score"),
        (REQUESTS, SAME_ID, r"has '1' as candidates\[0\] and candidates\[1\]; give it once"),
        (REQUESTS, b'{"query": "q", "hits": [{"qid": 1, "docid": 2}]}', r"has a wrong hits\[0\]: it has no content"),
        (REQUESTS, HITS_OF_TWO, "has hits of 2 queries; give hits of one query"),
        (REQUESTS, request("", query={"text": "q"}), r"has a wrong query: it has no qid \(or query_id, _id, id\)"),
        (REQUESTS, b'{"query": {"text": "q", "qid": 1}}', "has no candidates; found query"),
        (REQUESTS, request({"nothing": "here"}), r"has a wrong candidates\[0\]: it has a wrong doc: it has no text \("),
    ],
)
def test_bad_line_is_named(tmp_path, reader, line, problem):
    (path := tmp_path / "file").write_bytes(reader[1] + b"\n\n" + line + b"\n")
    with pytest.raises(CollectionError, match=f"/file:3 {problem}"):
        reader[0](path)
