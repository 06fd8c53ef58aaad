"""A client that has only the .proto can call every method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PASSAGES
from tests.serving import TIMEOUT_S, Served

ROOT = Path(__file__).parents[3]
CLIENT = Path(__file__).with_name("foreign_client.py")


@pytest.fixture(scope="module")
def replies(service: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The responses that the client received, by method."""
    folder = tmp_path_factory.mktemp("foreign")
    descriptors = folder / "contract.binpb"
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", f"--descriptor_set_out={descriptors}"]
    subprocess.run([*protoc, "--include_imports", "rerank/v1/rerank.proto"], cwd=ROOT, check=True)
    command = [sys.executable, "-I", str(CLIENT), str(descriptors), service.address]
    client = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert client.returncode == 0, client.stderr
    found: dict[str, Any] = json.loads(client.stdout)
    return found


def test_rerank(replies: dict[str, Any]) -> None:
    results = replies["Rerank"]["results"]
    assert results[0]["doc_id"] == "d1"
    assert {row["doc_id"] for row in results} == {"d0", "d1", "violin"}
    assert {row["doc_id"]: row["text"] for row in results}["violin"] == " ".join(PASSAGES["violin"])
    assert [row["first_stage_score"] for row in results if "first_stage_score" in row] == [2.5]
    assert replies["Rerank"]["score_kind"] == "SCORE_KIND_WINDOW_LOG_PROB"
    assert replies["Rerank"]["execution"]["completeness"] == "COMPLETENESS_FULL"


def test_search(replies: dict[str, Any]) -> None:
    assert [row["doc_id"] for row in replies["Search"]["results"]] == ["flea"]
    assert replies["Search"]["first_stage"] == "FIRST_STAGE_BM25"


def test_list_models(replies: dict[str, Any]) -> None:
    assert [model["name"] for model in replies["ListModels"]["models"]] == ["pe-rank", "identity", "number"]
    assert replies["ListModels"]["index"]["passages"] == str(len(PASSAGES))  # int64 is a string in JSON
