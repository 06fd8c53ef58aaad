"""The answer to an HTTP request: sends it, and describes in its headers what ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import Send

from rerank.v1 import rerank_pb2 as pb


@dataclass(frozen=True)
class Answer:
    """Status, body (JSON) and headers of an answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


async def send_answer(answer: Answer, send: Send) -> None:
    """Sends an answer. Returns when the client has read all but the last 64 KiB, which the server has buffered."""
    headers = {"content-type": "application/json", "content-length": str(len(answer.body))} | dict(answer.headers)
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(answer.status), "headers": encoded})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def execution_headers(response: pb.RerankResponse | pb.SearchResponse) -> dict[str, str]:
    """Headers about what ran; the times, in milliseconds, have TEI's names."""
    execution = response.execution
    return {
        "x-rerank-model": _escaped(execution.model),
        "x-rerank-strategy": _escaped(execution.strategy),
        "x-rerank-completeness": pb.Completeness.Name(execution.completeness).removeprefix("COMPLETENESS_").lower(),
        "x-rerank-cached-vectors": str(execution.cached_vectors),
        "x-total-time": f"{execution.total_ms:.0f}",
        "x-queue-time": f"{execution.queue_ms:.0f}",
        "x-tokenization-time": f"{execution.prepare_ms:.0f}",
        "x-inference-time": f"{execution.model_ms:.0f}",
    }


def _escaped(text: str) -> str:
    """The text with the characters escaped that a header cannot hold."""
    return json.dumps(text)[1:-1]
