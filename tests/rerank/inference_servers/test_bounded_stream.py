"""What a server sends is read in small pieces until its body, and not beyond what an answer has."""

from typing import Any

import httpcore2
import httpx2
import pytest

from rerank.inference_servers.bounded_stream import BoundedStream, TooMuch
from rerank.inference_servers.server import client_of


class Endless(httpcore2.AsyncNetworkStream):
    """Sends as many bytes as it is asked for."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return b"x" * max_bytes

    async def write(self, buffer: bytes, timeout: float | None = None) -> None: ...  # noqa: ASYNC109

    async def start_tls(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return self


async def test_head_is_read_in_pieces_up_to_its_bound_again_after_each_request():
    stream = await BoundedStream(Endless()).start_tls()
    for _ in range(2):
        await stream.write(b"GET / HTTP/1.1\r\n\r\n")
        assert [len(await stream.read(65_536)) for _ in range(16)] == [4096] * 16
        with pytest.raises(TooMuch):
            await stream.read(65_536)


async def test_body_is_read_at_once_up_to_its_bound():
    stream = BoundedStream(Endless())
    stream.begin_body(100_000)
    assert len(await stream.read(65_536)) == 65_536
    with pytest.raises(TooMuch):
        await stream.read(65_536)


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
async def test_connections_to_servers_and_proxies_are_bounded(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    async with client_of("http://server.example", "") as client:
        used: Any = client._transport_for_url(httpx2.URL("http://server.example"))
        assert type(used._pool._network_backend).__name__ == "_BoundedBackend"
