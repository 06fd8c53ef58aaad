"""Answers only requests for known hosts, against web pages that read the port through a visitor's browser."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.ports.http.problem import RefusedByHttp

#: The header Host: a name or an address, and a port.
_HOST = re.compile(r"\[?(?P<name>[^\[\]@/]*?)\]?(:[0-9]*)?")


class OwnHosts:
    """Middleware that answers requests to IP addresses and to the names of this machine, and refuses other names.

    An attacker can let his own name resolve to this machine (DNS rebinding). His page could then read the port in a
    visitor's browser, which sends that name as the host. With an address, a page cannot do this.

    Args:
        app: the application that answers requests for known hosts.
        listen: HOST:PORT of the port.
        allowed: further names.
        refuse: answers a request with another name.
    """

    def __init__(
        self, app: ASGIApp, listen: str, allowed: Collection[str], refuse: Callable[[RefusedByHttp], Response]
    ) -> None:
        self._app, self._refuse = app, refuse
        self._names = {"localhost", *(name.strip("[]").lower() for name in (listen.rpartition(":")[0], *allowed))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("host", "")
        matched = _HOST.fullmatch(given)
        if matched and (matched["name"].lower() in self._names or _is_address(matched["name"])):
            await self._app(scope, receive, send)
            return
        host = f"the host {given[:100]!r}" if given else "the header Host, which is missing,"
        names = ", ".join(sorted(name for name in self._names if not _is_address(name)))
        message = (
            f"{host} is neither an IP address nor one of the names that this port answers to ({names}); use one of "
            "these, or have the service started with --allowed-host NAME"
        )
        await self._refuse(RefusedByHttp(HTTPStatus.BAD_REQUEST, message))(scope, receive, send)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
