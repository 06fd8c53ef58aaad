"""The blocking and the asyncio client with one interface, for tests of both."""

import asyncio
from dataclasses import dataclass
from typing import Any

from rerank.client.client import AsyncRerankClient, RerankClient


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
