"""API keys over gRPC: messages of strangers are not read, reflection is off, and the Python client sends its key."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.client import Credentials, RerankClient, ServiceError
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


@pytest.mark.parametrize(
    ("has_keys", "setting", "is_told"),
    [(True, None, False), (True, True, True), (False, None, True), (False, False, False)],
)
def test_with_keys_reflection_is_off_unless_asked_for(
    encoder: Encoder, tmp_path: Path, has_keys: bool, setting: bool | None, is_told: bool
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]")
    with identity_service(encoder, keys=keys if has_keys else None, reflection=setting) as (_, channel, _):
        database = ProtoReflectionDescriptorDatabase(channel)
        if is_told:
            assert SERVICE in database.get_services()
        else:
            assert refusal(database.get_services).code is grpc.StatusCode.UNIMPLEMENTED


def test_client_sends_its_key_and_names_the_refusal(encoder: Encoder, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.yaml", "a", CallerLimits())
    with identity_service(encoder, keys=tmp_path / "keys.yaml") as (served, _, _):
        with RerankClient(served.address, Credentials(api_key=key)) as client:
            assert len(client.rerank("q", ["1", "2"], TIMEOUT_S).results) == 2
        with RerankClient(served.address) as client, pytest.raises(ServiceError) as caught:
            client.list_models(TIMEOUT_S)
        assert caught.value.code is UNAUTHENTICATED
        assert "needs an API key; send the header `authorization: Bearer KEY`" in str(caught.value)
