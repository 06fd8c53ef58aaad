"""The host names to which an HTTP port answers that nothing else guards."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.http.problem import RefusedByHttp

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"\[?(?P<name>[^\[\]@/]*?)\]?(:[0-9]*)?")


class OwnHosts:
    """Middleware that refuses foreign Host headers (DNS rebinding): names that are not those of this machine.

    Otherwise a web page whose name is made to point at this machine could read the port in its visitor's browser.

    Args:
        app: the application behind it.
        listen: HOST:PORT of the port.
        refuse: the answer to a request with another name.
    """

    def __init__(self, app: ASGIApp, listen: str, refuse: Callable[[RefusedByHttp], Response]) -> None:
        self._app, self._refuse = app, refuse
        self._names = {*_LOOPBACK, listen.rpartition(":")[0].strip("[]").lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("host", "")
        matched = _HOST.fullmatch(given)
        if matched and matched["name"].lower() in self._names:
            await self._app(scope, receive, send)
            return
        message = (
            f"the host {given[:100]!r} is none of {', '.join(sorted(self._names))}, to which this port answers; "
            "use one of these names, or have the service started with --insecure"
        )
        await self._refuse(RefusedByHttp(HTTPStatus.BAD_REQUEST, message))(scope, receive, send)
