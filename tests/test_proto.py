"""The protobuf definition: generated code is up to date, and everything has a comment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.doc_pages import commands

ROOT = Path(__file__).parent.parent

#: Field numbers of descriptor.proto, which the paths of SourceCodeInfo consist of.
MESSAGE, ENUM, SERVICE = 4, 5, 6
#: The number of the fields of a message, of the values of an enum, and of the methods of a service.
CHILD = 2


@pytest.fixture(scope="module")
def proto(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    """proto/rerank/v1/rerank.proto as parsed by protoc, with its comments."""
    out = tmp_path_factory.mktemp("proto") / "rerank.binpb"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"--descriptor_set_out={out}"]
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


PROTOC = [words for words in commands(ROOT / "docs" / "guide" / "serve.md") if "proto" in words]


#: An output of protoc → the program that makes it; grpcio-tools have Python's themselves.
GENERATORS = {
    "--go_out": "protoc-gen-go",
    "--go-grpc_out": "protoc-gen-go-grpc",
    "--java_out": "protoc",
    "--grpc-java_out": "protoc-gen-grpc-java",
}


@pytest.mark.parametrize("words", PROTOC, ids=[next(w for w in words if "_out" in w) for words in PROTOC])
def test_protocol_compiles_with_nothing_beside_it(words: list[str], tmp_path: Path) -> None:
    """The commands of the guide, on a folder with this file alone; without the generators that are not installed."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    (tmp_path / "gen").mkdir()
    protoc = (
        ["protoc"] if words[0] == "protoc" and shutil.which("protoc") else [sys.executable, "-m", "grpc_tools.protoc"]
    )
    missing = tuple(output for output, program in GENERATORS.items() if shutil.which(program) is None)
    arguments = [word for word in words[words.index("-I") :] if not word.startswith(missing)]
    command = [*protoc, "--descriptor_set_out=gen/rerank.binpb", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "hasn't been updated to support optional fields" in done.stderr:
        pytest.skip("the generator on PATH is older than proto3's optional fields")
    assert done.returncode == 0, done.stderr
    made = [path for path in (tmp_path / "gen").rglob("*") if path.is_file()]
    assert len(made) > sum("_out=" in word for word in arguments)


def test_generated_python_is_a_client_by_itself(tmp_path: Path) -> None:
    out = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *out, "rerank/v1/rerank.proto"], cwd=ROOT, check=True
    )
    (tmp_path / "client.py").write_text(
        "from rerank.v1 import rerank_pb2, rerank_pb2_grpc\n"
        "print(rerank_pb2.__file__, rerank_pb2_grpc.RerankServiceStub.__name__)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(grpc.__file__).parents[1])}
    without_rerank = [sys.executable, "-S", "client.py"]
    done = subprocess.run(without_rerank, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "rerank" / "v1" / "rerank_pb2.py"), "RerankServiceStub"]
