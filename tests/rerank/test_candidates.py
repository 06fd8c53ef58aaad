"""The forms of candidates that the clients and the in-process reranker take; anything else is an InvalidRequest."""

from rerank.client.client import rerank_request
from rerank.types import Passage


def test_text_is_left_out_of_a_reference_to_the_index_only():
    passages = [Passage("a", in_index=True), Passage("b", "text", in_index=True), Passage("c", "")]
    sent = rerank_request("q", passages, {}).candidates
    shown = [(message.in_index, message.HasField("text")) for message in sent]
    assert shown == [(True, False), (True, True), (False, True)]
