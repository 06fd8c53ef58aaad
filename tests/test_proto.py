"""The wire contract: the committed stubs are fresh, and the contract keeps the rules it is written by."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parent.parent

#: Field numbers in descriptor.proto, from which the paths of SourceCodeInfo are made.
MESSAGE, ENUM, SERVICE, FIELD, VALUE, METHOD = 4, 5, 6, 2, 2, 2


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    """proto/rerank/v1/rerank.proto as protoc reads it, with its comments."""
    out = tmp_path_factory.mktemp("proto") / "rerank.binpb"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"--descriptor_set_out={out}"]
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


def value_prefix(enum: EnumDescriptorProto) -> str:
    """StrategyKind → STRATEGY_KIND_"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"


def test_committed_stubs_are_what_the_script_makes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "gen_proto.sh", tmp_path], env=environment, check=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "rerank" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "rerank" / "v1").glob("rerank_pb2*")}
    assert made.keys() == committed.keys() == {"rerank_pb2.py", "rerank_pb2.pyi", "rerank_pb2_grpc.py"}
    stale = [name for name in made if made[name] != committed[name]]
    assert not stale, f"rerank/v1 is stale ({', '.join(stale)}); run `make proto`"


def test_everything_has_a_comment(contract: FileDescriptorProto) -> None:
    comments = {tuple(place.path): place.leading_comments.strip() for place in contract.source_code_info.location}
    elements = dict(named_elements(contract))
    assert {"RerankService.Rerank", "Candidate.doc_id", "ScoreKind.SCORE_KIND_RANK"} <= elements.keys()
    bare = [name for name, path in elements.items() if not comments.get(path)]
    assert not bare, f"without a comment: {', '.join(bare)}"


def test_package_says_the_version(contract: FileDescriptorProto) -> None:
    assert (contract.package, contract.syntax) == ("rerank.v1", "proto3")


def test_enums_start_unspecified_and_values_carry_their_prefix(contract: FileDescriptorProto) -> None:
    for enum in contract.enum_type:
        zero = enum.value[0]
        assert (zero.number, zero.name) == (0, f"{value_prefix(enum)}UNSPECIFIED")
        assert all(value.name.startswith(value_prefix(enum)) for value in enum.value), enum.name


def test_service_names_end_in_service(contract: FileDescriptorProto) -> None:
    assert [service.name for service in contract.service if not service.name.endswith("Service")] == []


def test_each_rpc_has_messages_of_its_own(contract: FileDescriptorProto) -> None:
    for service in contract.service:
        for method in service.method:
            expected = (f".rerank.v1.{method.name}Request", f".rerank.v1.{method.name}Response")
            assert (method.input_type, method.output_type) == expected


def test_fields_are_lower_snake_case(contract: FileDescriptorProto) -> None:
    names = [(message.name, field.name) for message in contract.message_type for field in message.field]
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name[1])] == []


def test_times_are_double_milliseconds(contract: FileDescriptorProto) -> None:
    fields = [field for message in contract.message_type for field in message.field if field.name.endswith("_ms")]
    assert fields
    assert all(field.type == field.TYPE_DOUBLE for field in fields)
