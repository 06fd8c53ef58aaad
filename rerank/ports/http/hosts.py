"""The host names to which the HTTP port answers if nothing else guards it."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.config.http import HttpConfig
from rerank.ports.http.problem import RefusedByHttp

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"\[?(?P<name>[^\[\]@/]*?)\]?(:[0-9]*)?")


class OwnHosts:
    """Middleware that answers to the names of this machine and those that the settings allow, against DNS rebinding.

    An attacker can make a name of his point at this machine. His page could then read the port in a visitor's browser.

    Args:
        app: the application behind it.
        http: the settings of the port.
        refuse: answers a request with another name.
    """

    def __init__(self, app: ASGIApp, http: HttpConfig, refuse: Callable[[RefusedByHttp], Response]) -> None:
        self._app, self._refuse = app, refuse
        names = (http.listen.rpartition(":")[0], *http.allowed_hosts)
        self._names = frozenset({*_LOOPBACK, *(name.strip("[]").lower() for name in names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("host", "")
        matched = _HOST.fullmatch(given)
        if matched and matched["name"].lower() in self._names:
            await self._app(scope, receive, send)
            return
        host = f"the host {given[:100]!r}" if given else "the header Host, which is missing,"
        message = (
            f"{host} is not one of {', '.join(sorted(self._names))}, to which this port answers; use one of these "
            "names, or have it started with --allowed-host NAME, or with keys (--keys FILE)"
        )
        await self._refuse(RefusedByHttp(HTTPStatus.BAD_REQUEST, message))(scope, receive, send)
