"""The host names to which an HTTP port answers if nothing else guards it, and the origins of its own pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.ports.http.problem import RefusedByHttp

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"\[?(?P<name>[^\[\]@/]*?)\]?(:[0-9]*)?")
_ORIGIN = re.compile(r"https?://(?P<host>[^@/]+)")


def own_names(listen: str, allowed: Sequence[str] = ()) -> frozenset[str]:
    """The names of this machine, the name at which the port listens (HOST:PORT), and those that its settings allow."""
    return frozenset({*_LOOPBACK, *(name.strip("[]").lower() for name in (listen.rpartition(":")[0], *allowed))})


def check_origin(headers: Headers, names: Collection[str], is_guarded: bool) -> None:
    """Refuses requests of foreign web pages, as the specification of MCP demands.

    Args:
        headers: those of the request. Browsers send an Origin, programs do not.
        names: the names of this machine, see `own_names`.
        is_guarded: whether keys or certificates keep strangers out. Then any name in the header Host is ours.

    Raises:
        RefusedByHttp: 403.
    """
    for origin in headers.getlist("origin"):
        matched = _ORIGIN.fullmatch(origin.lower())
        host = matched["host"] if matched else ""
        named = _HOST.fullmatch(host)
        if not (named and named["name"] in names) and not (
            is_guarded and host == headers.get("host", "").lower() != ""
        ):
            message = (
                f"the origin {origin[:100]!r} is none of this port, whose names are {', '.join(sorted(names))}; "
                "send the request from a program or from a page of the port, without a header Origin of other pages"
            )
            raise RefusedByHttp(HTTPStatus.FORBIDDEN, message)


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
        matched = _HOST.fullmatch(given)
        if matched and matched["name"].lower() in self._names:
            await self._app(scope, receive, send)
            return
        host = f"the host {given[:100]!r}" if given else "the header Host, which is missing,"
        message = (
            f"{host} is none of {', '.join(sorted(self._names))}, to which this port answers; "
            f"use one of these names, or have it started with {self._way_out}"
        )
        await self._refuse(RefusedByHttp(HTTPStatus.BAD_REQUEST, message))(scope, receive, send)
