"""Fields of serialized messages, counted without parsing: as many as the parser finds, and no more than the limit."""

from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from rerank.config import Limits
from rerank.protobuf.field_count import check_field_count, count_fields
from rerank.v1 import rerank_pb2 as pb

KIND = pb.RerankRequest.DESCRIPTOR
MANY = 10_000
#: Pieces of messages, whole and half: fields, candidates, unknown fields of each wire type, groups, long varints.
PIECES = [
    *(b"\x0a\x01q", b"\x12\x00", b"\x12\x03\x0a\x01a", b"\x12\x02\x12\x00", b"\x2a\x00", b"\x2a\x02\x32\x00"),
    *(b"\x20\x05", b"\x78\x00", b"\x7a\x01x", b"\x7d\x00\x00\x00\x00", b"\x79" + bytes(8), b"\x7b", b"\x7c"),
    *(b"\x92\x80\x00", b"\x92\x80\x80\x80\x80\x00", b"\x12\x80\x00", b"\x12\x05", b"\x80"),
    *(b"\xff\xff\xff\xff\x7f", b"\x00"),
]


def test_each_field_counts_once_with_those_of_the_messages_within():
    strategy = pb.Strategy(window_size=5)
    candidates = [pb.Candidate(doc_id="a", text="x" * 300), pb.Candidate(doc_id="b", in_index=True)]
    message = pb.RerankRequest(query="q", candidates=candidates, strategy=strategy).SerializeToString()
    assert count_fields(message, KIND, MANY) == 1 + (1 + 2) + (1 + 2) + (1 + 1)


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=30).map(b"".join))
@example(b"\x7b\x12\x00\x7c")
def test_no_message_has_more_candidates_than_are_counted(message):
    """A group's fields, which the parser skips, are counted, too."""
    count = count_fields(message, KIND, MANY)
    try:
        parsed = pb.RerankRequest.FromString(message)
    except DecodeError:
        return
    assert len(parsed.candidates) <= count


def test_largest_list_passes_with_all_fields_of_its_candidates():
    candidate = pb.Candidate(doc_id="a", text="t", in_index=True, first_stage_score=0.5, title="T")
    message = pb.RerankRequest(query="q", candidates=[candidate] * 1000, model="m", top_n=5, include_trace=True)
    check_field_count(message.SerializeToString(), KIND, Limits())
