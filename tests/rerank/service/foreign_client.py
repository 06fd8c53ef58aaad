"""A client that is written from the .proto alone: python foreign_client.py DESCRIPTOR_SET HOST:PORT.

It calls every method and prints the responses as one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory


def main(descriptor_set: str, target: str) -> None:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(Path(descriptor_set).read_bytes()).file:
        pool.Add(file)

    def call(method: str, fields: dict[str, Any]) -> dict[str, Any]:
        request, reply = (
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rerank.v1.{method}{kind}"))
            for kind in ("Request", "Response")
        )
        invoke = channel.unary_unary(
            f"/rerank.v1.RerankService/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        answer = invoke(json_format.ParseDict(fields, request()), timeout=60)
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)

    candidates = [
        {"doc_id": "d0", "text": "The moon orbits the earth.", "first_stage_score": 2.5},
        {"doc_id": "d1", "text": "A flea lives for weeks."},
        {"doc_id": "violin", "in_index": True},
    ]
    query = "how long does a flea live"
    with grpc.insecure_channel(target) as channel:
        replies = {
            "Rerank": call("Rerank", {"query": query, "candidates": candidates, "return_passages": True}),
            "Search": call("Search", {"query": query, "first_stage": "FIRST_STAGE_BM25", "top_n": 1}),
            "ListModels": call("ListModels", {}),
        }
    ours = [module for module in sys.modules if module.partition(".")[0] == "rerank"]
    assert not ours, f"this client is written from the proto alone, but imported {ours}"
    print(json.dumps(replies))


if __name__ == "__main__":
    main(*sys.argv[1:])
