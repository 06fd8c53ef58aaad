"""API keys over gRPC: messages of strangers are not read, reflection is off, and the Python client sends its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rerank.access.key_file import CallerLimits, add_key
from rerank.client import Credentials
from rerank.models.encoder import Encoder
from rerank.names import SERVICE
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, identity_service, refusal

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def test_message_of_a_stranger_is_not_read_and_two_keys_are_none(encoder: Encoder, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.yaml", "a", CallerLimits())
    with identity_service(encoder, keys=tmp_path / "keys.yaml") as (_, channel, stub):
        garbage = channel.unary_unary(f"/{SERVICE}/Rerank")
        assert refusal(lambda: garbage(b"\xff" * 1000, timeout=TIMEOUT_S)).code is UNAUTHENTICATED
        twice, request = Credentials(api_key=key).metadata * 2, pb.ListModelsRequest()
        assert refusal(lambda: stub.ListModels(request, timeout=TIMEOUT_S, metadata=twice)).code is UNAUTHENTICATED


@pytest.mark.parametrize(("has_keys", "refused"), [(True, grpc.StatusCode.UNIMPLEMENTED), (False, None)])
def test_with_keys_reflection_is_off(encoder: Encoder, tmp_path: Path, has_keys: bool, refused: Any) -> None:
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "a", CallerLimits())
    credentials = Credentials(api_key=key if has_keys else None)
    with identity_service(encoder, keys=keys if has_keys else None) as (_, channel, _):
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = stub.ServerReflectionInfo(iter([request]), metadata=credentials.metadata, timeout=TIMEOUT_S)
        if refused is None:
            assert SERVICE in [service.name for service in next(answers).list_services_response.service]
        else:
            assert refusal(lambda: next(answers)).code is refused
