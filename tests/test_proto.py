"""The protobuf definition: generated code is up to date, and everything has a comment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import status_pb2

ROOT = Path(__file__).parent.parent

#: Field numbers of descriptor.proto, which the paths of SourceCodeInfo consist of.
MESSAGE, ENUM, SERVICE = 4, 5, 6
#: The number of the fields of a message, of the values of an enum, and of the methods of a service.
CHILD = 2


@pytest.fixture(scope="module")
def proto(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    """proto/rerank/v1/rerank.proto as parsed by protoc, with its comments."""
    out = tmp_path_factory.mktemp("proto") / "rerank.binpb"
    googleapis = Path(status_pb2.__file__).parents[2]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"-I{googleapis}", f"--descriptor_set_out={out}"]
    subprocess.run([*protoc, "--include_source_info", "rerank/v1/rerank.proto"], cwd=ROOT, check=True)
    (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    return file


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "gen_proto.sh", tmp_path], env=environment, check=True)
    generated = {path.name: path.read_bytes() for path in (tmp_path / "rerank" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "rerank" / "v1").glob("rerank_pb2*")}
    assert generated.keys() == committed.keys() == {"rerank_pb2.py", "rerank_pb2.pyi", "rerank_pb2_grpc.py"}
    stale = [name for name in generated if generated[name] != committed[name]]
    assert not stale, f"rerank/v1 is out of date ({', '.join(stale)}); run `make proto`"


def test_everything_has_a_comment(proto: FileDescriptorProto) -> None:
    places = [
        place for place in proto.source_code_info.location if place.path and place.path[0] in (MESSAGE, ENUM, SERVICE)
    ]
    elements = [place for place in places if len(place.path) == 2 or (len(place.path) == 4 and place.path[2] == CHILD)]
    assert len(elements) > 100
    without = [place.span[0] + 1 for place in elements if not place.leading_comments.strip()]
    assert not without, f"without a comment: lines {without}"


def test_removed_enum_values_are_reserved(proto: FileDescriptorProto) -> None:
    (score_kind,) = [enum for enum in proto.enum_type if enum.name == "ScoreKind"]
    assert {"SCORE_KIND_CALIBRATED", "SCORE_KIND_QUERY_LOG_LIKELIHOOD"} == set(score_kind.reserved_name)
    assert [(reserved.start, reserved.end) for reserved in score_kind.reserved_range] == [(3, 3), (5, 5)]
