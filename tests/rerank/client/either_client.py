"""The blocking and the asyncio client with one interface, and servers for them that fail."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from rerank.client.client import AsyncRerankClient, RerankClient
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer, add_RerankServiceServicer_to_server


@dataclass(frozen=True)
class Client:
    """Calls either client in the same way."""

    kind: type[RerankClient] | type[AsyncRerankClient]
    target: str
    attempts: int | None = None

    def call(self, method: str, *args: object, **options: Any) -> Any:
        if self.kind is RerankClient:
            with RerankClient(self.target, attempts=self.attempts) as client:
                return getattr(client, method)(*args, **options)
        return asyncio.run(self._call_async(method, *args, **options))

    async def _call_async(self, method: str, *args: object, **options: Any) -> Any:
        async with AsyncRerankClient(self.target, attempts=self.attempts) as client:
            return await getattr(client, method)(*args, **options)


def server_of(**methods: Callable[..., Any]) -> grpc.Server:
    """A plain gRPC server of grpcio with these methods, which is not started."""
    server, servicer = grpc.server(ThreadPoolExecutor(2)), RerankServiceServicer()
    for name, method in methods.items():
        setattr(servicer, name, method)
    add_RerankServiceServicer_to_server(servicer, server)
    return server


@contextmanager
def serving_methods(**methods: Callable[..., Any]) -> Iterator[str]:
    """The address of a plain gRPC server with these methods."""
    server = server_of(**methods)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
