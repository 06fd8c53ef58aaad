"""Calls the inference server of a model over HTTP, but not while the server is unavailable or does not fit.

The server's health is checked about once a second. After a failure, as at the start, all of it is checked before it is
used: it may have come back with another model. Scoring and greedy generation change nothing at the server, so a call
whose answer was lost is safe to repeat.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from rerank.errors import ConfigError, ModelServerUnavailable, ModelServerUnfit, RerankError
from rerank.inference_servers.api import Post
from rerank.inference_servers.bounded_stream import BoundedStream, TooMuch, bound_connections
from rerank.util.json_values import has_more_values
from rerank.util.proxies import is_loopback, proxy_note

#: Statuses with which the same request may succeed later.
_TRY_AGAIN = {429, 500, 502, 503, 504}
#: Characters of a server's answer that an error quotes.
_QUOTED = 200
#: Number of bytes that any answer may have.
_ANSWER_BYTES = 1 << 20
#: Bytes that an answer may have in addition for each byte of the request, because some servers send the texts of the
#: request back, and JSON may escape each character.
_ANSWER_PER_REQUEST_BYTE = 8
#: Number of chunks that any answer may have.
_FREE_CHUNKS = 10_000
#: Number of bytes for which an answer may have one chunk more.
_CHUNK_BYTES = 256
#: Largest number of values of a JSON answer: an answer for 1,000 passages has some 10,000.
_ANSWER_VALUES = 200_000
#: Environment variables that name a proxy for HTTP.
_PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_CONNECT_S = 5.0
#: Seconds from the beginning of a call to the end of its answer; longer than any request to this service may take.
_ANSWER_S = 300.0
#: A server that is alive answers GET /health within this time, however busy it is.
_HEALTH_S = 5.0
#: Servers close idle connections after 5 s. A call on a connection that closes at that moment would fail.
_KEEPALIVE_S = 3.0
log = logging.getLogger(__name__)

T = TypeVar("T")

#: Largest number of attempts of a call.
_ATTEMPTS = 3
#: The wait before the second attempt, in seconds, without its jitter; it doubles with each further attempt.
_BACKOFF_S = 0.1
#: The longest wait that a server may ask for; a server that asks for more counts as unavailable.
_MAX_WAIT_S = 5.0
#: Seconds between two checks of a server, without the jitter.
_CHECK_S = 1.0
#: The same for a server that answers but does not fit.
_CHECK_UNFIT_S = 10.0
#: Seconds that `open` waits for the first check.
_OPEN_S = 10.0


class NoAnswer(Exception):
    """A server did not answer, or sent only a part of its answer: the same request may be sent once more.

    Attributes:
        retry_after_s: seconds that the server asks to wait.
        lost: the connection failed, so the server may have stopped.
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
    """

    def __init__(self, url: str, client: httpx2.AsyncClient, health: str = "/health") -> None:
        self.url = url
        self._client = client
        self._health = health

    async def post(self, post: Post) -> Any:
        """Returns the JSON answer to a request.

        Raises:
            NoAnswer: the request may be sent once more.
            ModelServerUnfit: the server refuses the request.
        """
        return self._json(post.path, await self._send("POST", post.path, json=post.body))

    async def get(self, path: str) -> Any:
        """Returns the JSON answer to a GET request. Raises as `post` does."""
        return self._json(path, await self._send("GET", path))

    async def check_health(self) -> None:
        """Raises: NoAnswer if the server is not there, or not ready."""
        if self._health:
            await self._send("GET", self._health, _HEALTH_S)

    async def _send(self, method: str, path: str, within_s: float | None = None, **options: Any) -> bytes:
        """Returns the body of the answer, which must arrive within `within_s` seconds; by default the client's timeout.

        Raises: NoAnswer, ModelServerUnfit.
        """
        within_s = within_s or self._client.timeout.read
        try:
            async with asyncio.timeout(within_s):
                status, headers, content = await self._exchange(method, path, **options)
        except TimeoutError as error:
            raise NoAnswer(f"{self.url}{path}: no answer within {within_s:g} s", lost=True) from error
        except httpx2.HTTPError as error:
            proxy = proxy_note(_host(self.url), _PROXIES)
            raise NoAnswer(f"{self.url}: {type(error).__name__}: {error}{proxy}", lost=True) from error
        if 200 <= status < 300:
            return content
        refusal = f"{self.url}{path} answered {status}: {self._quoted(content)}"
        if status in _TRY_AGAIN:
            after = headers.get("retry-after", "")
            raise NoAnswer(refusal, float(after) if after.isdecimal() else 0.0)  # Retry-After may be a date
        raise ModelServerUnfit(f"{refusal}; correct served_by, or the server", {"status": str(status)})

    async def _exchange(self, method: str, path: str, **options: Any) -> tuple[int, httpx2.Headers, bytes]:
        """Status, headers and body of the answer. Raises: ModelServerUnfit if the answer is too long; HTTPError."""
        request = self._client.build_request(method, self.url + path, **options)
        most_bytes = _ANSWER_BYTES + _ANSWER_PER_REQUEST_BYTE * len(request.content)
        try:
            response = await self._client.send(request, stream=True)
            stream = response.extensions["network_stream"]
            if isinstance(stream, BoundedStream):  # after 101 Switching Protocols, the stream has another class
                stream.begin_body(2 * most_bytes)  # half of it for the lengths of chunks
            try:
                content = await _content(response, most_bytes)
            finally:
                await response.aclose()
        except TooMuch as error:
            raise ModelServerUnfit(
                f"{self.url}{path} answered with more than {most_bytes} bytes, too many small ones, or more than one "
                "answer; correct served_by"
            ) from error
        return response.status_code, response.headers, content

    def _json(self, path: str, content: bytes) -> Any:
        if has_more_values(content, _ANSWER_VALUES):
            problem = f"{self.url}{path} answered with more than {_ANSWER_VALUES} values; correct served_by"
            raise ModelServerUnfit(problem)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise NoAnswer(
                f"{self.url}{path} answered what is not JSON, or a part of it: {self._quoted(content)!r}"
            ) from error

    def _quoted(self, content: bytes) -> str:
        """Returns the beginning of an answer, without the API key, which some servers repeat."""
        text = " ".join(content[: 10 * _QUOTED].decode(errors="replace").split())
        key = self._client.headers.get("authorization", "").removeprefix("Bearer ")
        return (text.replace(key, "(the API key)") if key else text)[:_QUOTED]


async def _content(response: httpx2.Response, most_bytes: int) -> bytes:
    """Reads the body of an answer. Other tasks run between chunks, which may have one byte each. Raises: TooMuch."""
    content, chunks = bytearray(), 0
    async for chunk in response.aiter_bytes():
        content += chunk
        chunks += 1
        if len(content) > most_bytes or chunks > _FREE_CHUNKS + len(content) // _CHUNK_BYTES:
            raise TooMuch
        await asyncio.sleep(0)
    return bytes(content)


def client_of(url: str, api_key: str) -> httpx2.AsyncClient:
    """Returns the HTTP client for the server of a model.

    Proxies of the environment are used, but not for this machine's loopback, which no proxy reaches.

    Args:
        api_key: sent with each request; empty: none.

    Raises: ConfigError if a proxy cannot be used.
    """
    try:
        client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_S),
            verify=httpx2.create_ssl_context(),  # reads SSL_CERT_FILE, whatever trust_env
            trust_env=not is_loopback(_host(url)),
        )
        bound_connections(client)
        return client
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url} cannot be called{proxy_note(_host(url), _PROXIES)}: {error}") from error


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


class WatchedServer:
    """The server of one model, which is called only while its checks succeed.

    Args:
        model: the name of the model in the configuration, for the log.
        server: the server.
        check: checks that the server fits, before it is used. Raises NoAnswer, or a RerankError with the problem.
    """

    def __init__(self, model: str, server: Server, check: Callable[[], Awaitable[None]]) -> None:
        self._model, self._server, self._check = model, server, check
        self._problem: RerankError | None = ModelServerUnavailable(f"{server.url} has not answered yet")
        self._recheck = asyncio.Event()  # set when a call lost its connection
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def problem(self) -> str:
        """Why no requests are sent to the server; empty if they are sent."""
        return str(self._problem or "")

    async def open(self) -> None:
        """Checks the server, and then again and again until `close`. Waits for the first check, but at most 10 s."""
        first_check = asyncio.create_task(self._check_now())
        self._tasks = [first_check, asyncio.create_task(self._watch(first_check), name=self._server.url)]
        try:
            await asyncio.wait([first_check], timeout=_OPEN_S)
        except asyncio.CancelledError:  # the service is stopped before it has started
            await self.close()
            raise

    async def close(self) -> None:
        """Ends all checks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def call(self, use: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `use`, which calls the server. A call without an answer is sent again.

        Waits for the first check if it has not ended yet.

        Raises:
            ModelServerUnavailable: the server did not answer.
            RerankError: what `use` raised, or what is wrong with the server.
        """
        if self._problem and self._tasks:
            await asyncio.wait(self._tasks[:1])
        for attempt in range(_ATTEMPTS):
            if self._problem:
                is_away = isinstance(self._problem, ModelServerUnavailable)
                kind = ModelServerUnavailable if is_away else ModelServerUnfit
                raise kind(f"the server of model {self._model} cannot be used: {self._problem}")
            try:
                return await use()
            except NoAnswer as error:
                if error.lost:
                    self._recheck.set()
                if attempt == _ATTEMPTS - 1 or error.retry_after_s > _MAX_WAIT_S:
                    raise ModelServerUnavailable(
                        f"{error}, after {attempt + 1} attempts; send the request again later"
                    ) from error
                wait_s = max(error.retry_after_s, _BACKOFF_S * 2**attempt)
            await asyncio.sleep(_jittered(wait_s))
        raise AssertionError("the last attempt returns or raises; this is a bug")

    async def _watch(self, first_check: asyncio.Task[None]) -> None:
        await asyncio.wait({first_check})
        while True:
            is_unfit = self._problem is not None and not isinstance(self._problem, ModelServerUnavailable)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._recheck.wait(), _jittered(_CHECK_UNFIT_S if is_unfit else _CHECK_S))
            await self._check_now()
            self._recheck.clear()

    async def _check_now(self) -> None:
        """Updates the problem of the server."""
        before = self.problem
        try:
            await self._server.check_health()
            if before:
                await self._check()
            self._problem = None
        except NoAnswer as error:
            self._problem = ModelServerUnavailable(f"{error}; start the server, or correct served_by.url")
        except RerankError as error:
            self._problem = error
        except Exception as error:  # a bug of ours must not end the watch
            log.exception("model %s: the check of %s failed", self._model, self._server.url)
            self._problem = ModelServerUnfit(f"{self._server.url}: its check failed: {error!r}; this is a bug")
        if self.problem != before:
            log.warning("model %s: %s", self._model, self.problem or f"{self._server.url} is used")


def _jittered(seconds: float) -> float:
    """Lengthens a wait by up to a half at random, so that many callers do not return at the same moment."""
    return seconds * random.uniform(1.0, 1.5)
