"""Bodies of requests: their values are counted before anything is built from them."""

import json

import pytest

from rerank.errors import InvalidRequest
from rerank.ports.http.call import json_object
from tests.http_client import JSON_TYPE

_MB = 2**20


@pytest.mark.parametrize(
    "element", ["1,", '"",', "[],", "{},", '{"a":[]},', '"\\"",', '"\\\\",', '"\\\\\\"",', " 1 ,\n"]
)
def test_body_of_millions_of_values_is_refused_before_it_is_parsed(element):
    body = b'{"query": "q", "documents": [%s0]}' % (element.encode() * (4 * _MB // len(element)))
    with pytest.raises(InvalidRequest, match=r"^body: it has more than 33000 values.* send at most 1000 candidates"):
        json_object(body, 1000)


@pytest.mark.parametrize(
    "sent",
    [
        b"[" * _MB,
        b'{"a":' * _MB,
        b'{"a":[' + (b"[" * 190 + b"]" * 190 + b",") * 1000,
        b"{" + b",".join(b'"%d":1' % number for number in range(_MB // 8)) + b"}",
        b'{"a": [' + b"9" * 4000 + b"," + b"9" * 2 * _MB,
    ],
)
def test_nested_lists_keys_and_digits_are_counted(sent):
    with pytest.raises(InvalidRequest, match=r"^body: it has more than"):
        json_object(sent, 1000)


@pytest.mark.parametrize("document", ["x", ",", "[{", "\\", '"', '\\\\"', "é\n", "\ud83d\ude00 ", " "])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_characters_of_texts_are_not_values(document, ascii_only):
    document = document.encode("utf-16", "surrogatepass").decode("utf-16")
    sent = {"query": "q", "documents": [document * 200_000, "b"]}
    assert json_object(json.dumps(sent, ensure_ascii=ascii_only).encode(), 2) == (sent, [])


def test_largest_requests_are_allowed():
    fields = {"text": "a, b", "title": "t", "first_stage_score": -0.1234567890123456, "in_index": True}
    sent = {"query": "q", "candidates": [{"doc_id": f"d{number}", **fields} for number in range(1000)]}
    assert json_object(json.dumps(sent, indent=8).encode(), 1000) == (sent, [])
    documents = [{f"field {place}": number for place in range(25)} for number in range(1000)]
    read, _ = json_object(json.dumps({"documents": documents}).encode(), 1000)
    assert len(read["documents"]) == 1000


@pytest.mark.parametrize("sent", [b"", b"[]", b"1", b'"', b"{", b"\xff", b'{"a": "\\', b"\\" * 9])
def test_what_is_not_a_json_object_is_refused(sent):
    problem = ".*" if sent else "it is empty; "
    with pytest.raises(InvalidRequest, match=rf"^body: {problem}send a JSON object in UTF-8"):
        json_object(sent, 10)


@pytest.mark.parametrize(
    ("half", "read"),
    [
        (rb"\ud83d", "\ufffd"),
        (rb"\ude00", "\ufffd"),
        (rb"a \uD83D b", "a \ufffd b"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
    ],
)
@pytest.mark.parametrize("passages", ["documents", "texts", "candidates"])
def test_half_of_an_emoji_is_read_as_a_replacement_with_a_warning(http, passages, half, read):
    asked = b', "return_documents": true' if passages == "documents" else b""
    body = b'{"query": "q", "%s": ["a", "%s"]%s}' % (passages.encode(), half, asked)
    reply = http.send("POST", "/rerank", body, JSON_TYPE)
    assert reply.status == 200, reply.body
    assert "was read as U+FFFD" in reply.headers["x-rerank-warnings"]
    if passages == "documents":
        assert {row["document"]["text"] for row in reply.json["results"]} == {"a", read}


@pytest.mark.parametrize(
    ("charset", "encoding"),
    [("utf-8", "utf-8-sig"), ("UTF8", "utf-8"), ("iso-8859-1", "l1"), ("Windows-1252", "cp1252"), ("utf-16", "utf-16")],
)
def test_body_in_a_named_charset_or_with_a_byte_order_mark_is_read(http, charset, encoding):
    sent = json.dumps({"query": "q", "documents": ["é"], "return_documents": True}, ensure_ascii=False).encode(encoding)
    reply = http.send("POST", "/v2/rerank", sent, {"content-type": f'application/json; v=1; charset="{charset}"'})
    assert (reply.status, reply.json["results"][0]["document"]) == (200, {"text": "é"})


@pytest.mark.parametrize(
    ("sent", "content_type", "status", "message"),
    [
        (b'{"query": "caf\xe9"}', "application/json", 400, "body: byte 14 is 0xe9, which is not UTF-8; send"),
        (b'{"query": "\xed\xa0\xbd"}', "application/json", 400, "body: byte 11 is 0xed, which is not UTF-8; send"),
        (b'{"query": "\xe9"}', "application/json; charset=us-ascii", 400, "body: it is not in ascii, which its"),
        (b"\xff{}", "application/json; charset=utf-16", 400, "body: it is not in utf-16, which its content type names"),
        (b"{}", "application/json; charset=koi8-r", 415, "the charset is 'koi8-r'; send one of utf-8, "),
    ],
)
def test_body_in_another_charset_is_told_by_name(http, sent, content_type, status, message):
    reply = http.send("POST", "/v2/rerank", sent, {"content-type": content_type})
    assert (reply.status, reply.json["message"][: len(message)]) == (status, message)


@pytest.mark.parametrize("field", ["documents", "texts", "candidates"])
@pytest.mark.parametrize("element", [1, "", {}, [], None])
def test_candidates_are_counted_before_they_are_looked_at(http, field, element):
    reply = http.post("/rerank", {"query": "q", field: [element] * 1001})
    assert reply.status == 400
    message = reply.json.get("error") or reply.json["message"]
    way_out = "send at most 1000, or raise limits.max_candidates of the service"
    assert message == f"{field}: 1001 candidates exceed the limit of 1000; {way_out}"


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v2/rerank", {"documents": [1] * 1000}, "documents[0]: expected a text"),
        ("/rerank", {"texts": ["a", *[1] * 999]}, "texts[1]: expected a text"),
        ("/v2/rerank", {f"x{number}": 1 for number in range(30_000)}, "x0: this service does not know the field"),
        ("/v2/rerank", {"rank_fields": ["a"] * 101}, "rank_fields: 101 fields exceed the limit of 100; send at most"),
        ("/v2/rerank", {"rank_fields": [1] * 30_000}, "rank_fields: 30000 fields exceed the limit of 100; send at"),
        ("/search", {f"x{number}": 1 for number in range(30_000)}, "x0: SearchRequest has no such field"),
    ],
)
def test_first_problem_is_the_only_one(http, path, fields, message):
    reply = http.post(path, {"query": "q"} | ({"documents": ["a"]} if path == "/v2/rerank" else {}) | fields)
    assert reply.status == 400
    assert (reply.json.get("error") or reply.json["message"]).startswith(message)
