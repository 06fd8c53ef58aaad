"""The host names to which an HTTP port answers if nothing else guards it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.ports.http.problem import RefusedByHttp

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"\[?(?P<name>[^\[\]@/]*?)\]?(:[0-9]*)?")


def own_names(listen: str, allowed: Sequence[str] = ()) -> frozenset[str]:
    """The names of this machine, the name at which the port listens (HOST:PORT), and those that its settings allow."""
    return frozenset({*_LOOPBACK, *(name.strip("[]").lower() for name in (listen.rpartition(":")[0], *allowed))})


def name_of(host: str) -> str | None:
    """The name in a header Host or in an origin, without the port; None if it has another form."""
    matched = _HOST.fullmatch(host)
    return matched["name"].lower() if matched else None


class OwnHosts:
    """Middleware that answers to the names of this machine only, against DNS rebinding.

    An attacker can make a name of his point at this machine. His page could then read the port in a visitor's browser.

    Args:
        app: the application behind it.
        listen: HOST:PORT of the port.
        refuse: answers a request with another name.
        way_out: how an operator makes the port answer to other names.
        allowed: further names that are answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        listen: str,
        refuse: Callable[[RefusedByHttp], Response],
        way_out: str,
        allowed: Sequence[str] = (),
    ) -> None:
        self._app, self._refuse, self._way_out = app, refuse, way_out
        self._names = own_names(listen, allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("host", "")
        if name_of(given) in self._names:
            await self._app(scope, receive, send)
            return
        host = f"the host {given[:100]!r}" if given else "the header Host, which is missing,"
        message = (
            f"{host} is not one of {', '.join(sorted(self._names))}, to which this port answers; "
            f"use one of these names, or have it started with {self._way_out}"
        )
        await self._refuse(RefusedByHttp(HTTPStatus.BAD_REQUEST, message))(scope, receive, send)
