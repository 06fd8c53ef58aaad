"""Statuses of calls."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from rerank.errors import InvalidRequest
from rerank.ports.grpc.handlers import abort


class EndedConnection:
    """The context of a call whose connection ended: gRPC cannot send its status."""

    async def abort(self, *_: object) -> None:
        raise grpc.aio.InternalError("execute_batch")


async def test_status_of_a_call_whose_connection_ended_is_no_failure() -> None:
    with pytest.raises(asyncio.CancelledError, match="the connection ended before the call"):
        await abort(cast(Any, EndedConnection()), InvalidRequest("query", "is empty"))
