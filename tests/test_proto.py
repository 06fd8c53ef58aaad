"""The protobuf definition: generated code is up to date, and everything has a comment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import status_pb2

ROOT = Path(__file__).parent.parent

#: Field numbers of descriptor.proto, which the paths of SourceCodeInfo consist of.
MESSAGE, ENUM, SERVICE, FIELD, VALUE, METHOD = 4, 5, 6, 2, 2, 2


@pytest.fixture(scope="module")
def proto(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    """proto/rerank/v1/rerank.proto as parsed by protoc, with its comments."""
    out = tmp_path_factory.mktemp("proto") / "rerank.binpb"
    googleapis = Path(status_pb2.__file__).parents[2]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"-I{googleapis}", f"--descriptor_set_out={out}"]
    subprocess.run([*protoc, "--include_source_info", "rerank/v1/rerank.proto"], cwd=ROOT, check=True)
    (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    return file


def named_elements(file: FileDescriptorProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and source path of every message, field, enum, enum value, service and rpc."""
    for number, message in enumerate(file.message_type):
        yield message.name, (MESSAGE, number)
        yield from children(message.name, (MESSAGE, number, FIELD), [field.name for field in message.field])
        assert not message.nested_type, f"{message.name} nests messages; this test reads top-level ones only"
        assert not message.enum_type, f"{message.name} nests enums; this test reads top-level ones only"
    for number, enum in enumerate(file.enum_type):
        yield enum.name, (ENUM, number)
        yield from children(enum.name, (ENUM, number, VALUE), [value.name for value in enum.value])
    for number, service in enumerate(file.service):
        yield service.name, (SERVICE, number)
        yield from children(service.name, (SERVICE, number, METHOD), [method.name for method in service.method])


def children(parent: str, path: tuple[int, ...], names: list[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for number, name in enumerate(names):
        yield f"{parent}.{name}", (*path, number)


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "gen_proto.sh", tmp_path], env=environment, check=True)
    generated = {path.name: path.read_bytes() for path in (tmp_path / "rerank" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "rerank" / "v1").glob("rerank_pb2*")}
    assert generated.keys() == committed.keys() == {"rerank_pb2.py", "rerank_pb2.pyi", "rerank_pb2_grpc.py"}
    stale = [name for name in generated if generated[name] != committed[name]]
    assert not stale, f"rerank/v1 is out of date ({', '.join(stale)}); run `make proto`"


def test_everything_has_a_comment(proto: FileDescriptorProto) -> None:
    comments = {tuple(place.path): place.leading_comments.strip() for place in proto.source_code_info.location}
    elements = dict(named_elements(proto))
    assert {"RerankService.Rerank", "Candidate.doc_id", "ScoreKind.SCORE_KIND_RANK"} <= elements.keys()
    missing = [name for name, path in elements.items() if not comments.get(path)]
    assert not missing, f"without a comment: {', '.join(missing)}"


def test_removed_enum_values_are_reserved(proto: FileDescriptorProto) -> None:
    (score_kind,) = [enum for enum in proto.enum_type if enum.name == "ScoreKind"]
    assert {"SCORE_KIND_CALIBRATED", "SCORE_KIND_QUERY_LOG_LIKELIHOOD"} == set(score_kind.reserved_name)
    assert [(reserved.start, reserved.end) for reserved in score_kind.reserved_range] == [(3, 3), (5, 5)]
