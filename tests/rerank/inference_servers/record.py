"""Records a real inference server for the tests: python -m tests.rerank.inference_servers.record KIND URL OUT."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.reranking.load_models import load_remote
from tests.rerank.inference_servers.cases import RECORDED
from tests.rerank.inference_servers.stand_in import Reply, StandIn, key_of, stand_in


class Recorder:
    """Passes requests on to a server, and keeps what it answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.rows: dict[str, dict[str, Any]] = {}

    def __call__(self, path: str, body: Any) -> Reply:
        method = "GET" if body is None else "POST"
        response = httpx2.request(method, self._url + path, json=body, timeout=300)
        reply = response.json() if response.content else None
        for card in reply.get("data", []) if reply else []:
            card.pop("root", None)  # the folder on the server
        row = {"method": method, "path": path, "request": body, "status": response.status_code, "reply": reply}
        self.rows[key_of(method, path, body)] = row
        return Reply(response.status_code, reply)


async def record(kind: str, url: str, out: Path) -> None:
    recorder = Recorder(url)
    async with stand_in({}) as server:
        server.fault = recorder
        for make_model, request in RECORDED[kind]:
            await rank(server, make_model(server.url), request)
    text = "".join(json.dumps(row) + "\n" for row in recorder.rows.values())
    await asyncio.to_thread(out.write_text, text, encoding="utf-8")
    print(f"{out}: {len(recorder.rows)} replies")


async def rank(server: StandIn, model: Any, request: Any) -> None:
    ranker = load_remote(model)
    async with Engine({"zephyr": ranker}, EngineConfig()) as engine:
        print(model.served_by.model, ranker.problem or "can be used")
        ranking = await engine.run(request)
        print([(result.passage.doc_id, round(result.score, 3)) for result in ranking.ranked])


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
