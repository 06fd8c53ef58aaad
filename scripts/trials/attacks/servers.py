"""Attacks by the server of a model: a rerank API that passes its check, and then never ends an answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

from scripts.load_test.requests import made_request
from scripts.trials.attacks.hostile_servers import ENDLESS, SLOW, Answer, hostile, whole
from scripts.trials.attacks.registry import attack_on
from scripts.trials.calls import Target

#: Where the server listens; the settings of the service name it before the attack begins.
_PORT = 47_113
_SERVED = {"kind": "jina", "urls": [f"http://127.0.0.1:{_PORT}"], "model": "x"}
_SETTINGS = {
    "models": [
        {"name": "default", "ranker": "first", "strategy": "cascade", "preranker": "pe-rank", "early_exit": True},
        {"name": "pe-rank", "ranker": "pe-rank"},
        {"name": "identity", "ranker": "identity"},
        {"name": "served", "ranker": "api", "served_by": _SERVED},
    ]
}
#: Calls at the same time, their deadline, and how often they come.
_CALLS, _DEADLINE_S, _ROUNDS = 30, 2.0, 5
_SCORES = json.dumps({"results": [{"index": number, "relevance_score": 0.5} for number in range(2)]}).encode()
_COOKIES = [f"set-cookie: name{number}={'x' * 60}" for number in range(200)]


@attack_on(_SETTINGS)
async def server_without_an_end_of_100_continue(target: Target, draw: random.Random) -> Counter[str]:
    """30 calls at once of a model whose server sends "100 Continue" for ever, five times."""
    return await _calls_of(target, draw, ENDLESS["100 Continue"])


@attack_on(_SETTINGS)
async def server_of_a_byte_now_and_then(target: Target, draw: random.Random) -> Counter[str]:
    """30 calls at once of a model whose server sends a byte of a header now and then, five times."""
    return await _calls_of(target, draw, SLOW["bytes of a header"])


@attack_on(_SETTINGS)
async def server_of_200_cookies(target: Target, draw: random.Random) -> Counter[str]:
    """30 calls at once of a model whose server sets 200 cookies with each answer, forty times."""
    return await _calls_of(target, draw, whole(_SCORES, *_COOKIES), rounds=40)


async def _calls_of(target: Target, draw: random.Random, answer: Answer, rounds: int = _ROUNDS) -> Counter[str]:
    now = [whole(_SCORES)]
    message = made_request(draw, "served", 2, 100)
    async with hostile(lambda writer: now[0](writer), port=_PORT):
        async with asyncio.timeout(60):
            while await target.rerank(message, _DEADLINE_S) != "OK":  # noqa: ASYNC110
                await asyncio.sleep(0.5)  # until the service has seen that the server is there
        now[0] = answer
        outcomes = Counter[str]()
        for _ in range(rounds):
            outcomes.update(await asyncio.gather(*(target.rerank(message, _DEADLINE_S) for _ in range(_CALLS))))
    return outcomes
