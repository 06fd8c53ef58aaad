"""Descriptions of models with the hash of their weights, which a service knows once a model was loaded."""

from __future__ import annotations

from collections.abc import Collection

from rerank.client.client import RerankClient
from rerank.v1 import rerank_pb2 as pb


def list_loaded_models(client: RerankClient, names: Collection[str], timeout_s: float) -> pb.ListModelsResponse:
    """Lists the models after each of these was loaded once.

    A model that is loaded on request is asked for the order of one passage.

    Args:
        names: of models; a model that the service lacks is ignored, and an empty name means the default model.
        timeout_s: for each call.

    Raises:
        ServiceError: a call failed, as it does if a model cannot be loaded.
    """
    listed = client.list_models(timeout_s)
    described = {model.name: model for model in listed.models} | {"": listed.models[0]}
    asked = [model for name, model in described.items() if name in names]
    unknown = [model.name for model in asked if not (model.is_loaded or model.model_revision or model.problem)]
    for name in dict.fromkeys(unknown):
        client.rerank("a", ["a"], timeout_s, model=name)
    return client.list_models(timeout_s) if unknown else listed
