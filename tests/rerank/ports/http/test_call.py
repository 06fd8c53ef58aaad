"""What an HTTP call takes from its headers before its body is received."""

import asyncio
import math
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any

import pytest

from rerank.ports.http.call import HttpCall, RefusedByHttp

JSON = (b"content-type", b"application/json")


def call(*headers: tuple[bytes, bytes], max_bytes: int = 100) -> HttpCall:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    scope = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "headers": [*headers]}
    return HttpCall(scope, receive, max_bytes)


async def test_the_first_of_equal_headers_counts():
    timeouts = [(b"x-request-timeout-ms", number) for number in (b"2000", b"90000")]
    read = call(JSON, *timeouts)
    before = asyncio.get_running_loop().time()
    await read.read(nullcontext())
    assert read.deadline_s - before == pytest.approx(2, abs=1)
    with pytest.raises(RefusedByHttp, match="the content type is 'text/plain'"):
        await call((b"content-type", b"text/plain"), JSON).read(nullcontext())


async def test_body_that_is_announced_too_large_is_refused_before_it_comes():
    with pytest.raises(RefusedByHttp) as refused:
        await call(JSON, (b"content-length", b"101")).read(nullcontext())
    assert refused.value.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert await call(JSON, (b"content-length", b"100")).read(nullcontext()) == b"{}"


async def test_two_keys_are_no_key():
    one, other = (b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")
    assert call(one).authorization == "Bearer a"
    assert call(one, other).authorization is None
    assert call().authorization is None
    assert call(JSON).deadline_s == math.inf
