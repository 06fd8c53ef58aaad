"""One inference server: its HTTP calls, the number of those in flight, and why it cannot be used at the moment."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2

from rerank.errors import ModelServerUnavailable, ModelServerUnfit, RerankError
from rerank.inference_servers.api import Post

#: Statuses with which a server refuses now what it may do later, or elsewhere.
_TRY_AGAIN = {429, 500, 502, 503, 504}
#: Characters of a server's answer that an error quotes.
_QUOTED = 200
#: The most bytes of an answer: some servers send the request's texts back, in which JSON may escape each character.
_ANSWER_BYTES, _ANSWER_PER_REQUEST_BYTE = 1 << 20, 8
_CONNECT_S = 5.0
#: A server that is alive answers GET /health within this time, however busy it is.
_HEALTH_S = 5.0
#: Servers close idle connections after 5 s; one that is used at that moment would break.
_KEEPALIVE_S = 3.0


class NoAnswer(Exception):
    """A server did not answer, or only in part: the same request may be sent once more, best to another server.

    Attributes:
        retry_after_s: seconds that the server asks to wait.
        lost: the connection failed, so that the server may be gone.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0, lost: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.lost = lost


class Server:
    """An inference server at a URL.

    Args:
        url: its address, without a trailing slash.
        client: sends the requests.
        health: path that answers GET if the server is ready; empty: there is none, and it counts as ready.

    Attributes:
        in_flight: the requests that were sent and not answered.
        problem: why it is not used; None if it is.
        doubt: set when a call lost its connection, so that the server's health is looked at.
    """

    def __init__(self, url: str, client: httpx2.AsyncClient, health: str = "/health") -> None:
        self.url = url
        self._client = client
        self._health = health
        self.in_flight = 0
        self.problem: RerankError | None = ModelServerUnavailable(f"{url} has not answered yet")
        self.doubt = asyncio.Event()

    async def post(self, post: Post) -> Any:
        """The JSON answer to a request.

        Raises:
            NoAnswer: the request may be sent once more.
            ModelServerUnfit: the server refuses the request.
        """
        self.in_flight += 1
        try:
            return self._json(post.path, await self._send("POST", post.path, json=post.body))
        finally:
            self.in_flight -= 1

    async def get(self, path: str) -> Any:
        """The JSON answer to a GET request. Raises as `post` does."""
        return self._json(path, await self._send("GET", path))

    async def check_health(self) -> None:
        """Raises: NoAnswer if the server is not there, or not ready."""
        if self._health:
            await self._send("GET", self._health, timeout=httpx2.Timeout(_HEALTH_S, connect=_CONNECT_S))

    async def _send(self, method: str, path: str, **options: Any) -> bytes:
        """The body of the answer."""
        request = self._client.build_request(method, self.url + path, **options)
        most_bytes = _ANSWER_BYTES + _ANSWER_PER_REQUEST_BYTE * len(request.content)
        try:
            response = await self._client.send(request, stream=True)
            try:
                content = await _read(response, most_bytes)
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            reason = str(error) or "no answer in time"
            raise NoAnswer(f"{self.url}: {type(error).__name__}: {reason}", lost=True) from error
        if response.is_success and len(content) <= most_bytes:
            return content
        if response.is_success:
            raise ModelServerUnfit(f"{self.url}{path} answered with more than {most_bytes} bytes; correct served_by")
        refusal = f"{self.url}{path} answered {response.status_code}: {self._quoted(content)}"
        if response.status_code in _TRY_AGAIN:
            raise NoAnswer(refusal, _seconds(response.headers.get("retry-after", "")))
        status = {"status": str(response.status_code)}
        raise ModelServerUnfit(f"{refusal}; correct served_by, or the server", status)

    def _json(self, path: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise NoAnswer(
                f"{self.url}{path} answered what is no JSON, or a part of it: {self._quoted(content)!r}"
            ) from error

    def _quoted(self, content: bytes) -> str:
        """The beginning of an answer, without the API key, which some servers repeat."""
        text = " ".join(content[: 10 * _QUOTED].decode(errors="replace").split())
        key = self._client.headers.get("authorization", "").removeprefix("Bearer ")
        return (text.replace(key, "(the API key)") if key else text)[:_QUOTED]


async def _read(response: httpx2.Response, most_bytes: int) -> bytes:
    """The body of a response; a part of it that is longer than `most_bytes` if the body is."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > most_bytes:
            break
    return bytes(content)


def client_of(timeout_s: float, api_key: str) -> httpx2.AsyncClient:
    """The HTTP client for the servers of one model; `api_key` is sent to all of them if it is not empty."""
    headers = {"accept-encoding": "identity"}  # a compressed answer could be a thousand times as long
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_S)
    return httpx2.AsyncClient(
        headers=headers, timeout=httpx2.Timeout(timeout_s, connect=_CONNECT_S, pool=None), limits=limits
    )


def _seconds(retry_after: str) -> float:
    """The seconds of a Retry-After header; 0 if it has none, or a date."""
    return float(retry_after) if retry_after.isdecimal() else 0.0
