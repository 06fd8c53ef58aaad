"""The origins from which MCP takes messages: the pages of its own port."""

from __future__ import annotations

import re
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers

from rerank.ports.http.hosts import name_of
from rerank.ports.http.problem import RefusedByHttp

_ORIGIN = re.compile(r"https?://(?P<host>[^@/]+)")


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
        is_own = is_guarded and host == headers.get("host", "").lower() != ""
        if not is_own and (not host or name_of(host) not in names):
            message = (
                f"the origin {origin[:100]!r} is not one of this port, whose names are {', '.join(sorted(names))}; "
                "send the request from a program or from a page of the port, without a header Origin of other pages"
            )
            raise RefusedByHttp(HTTPStatus.FORBIDDEN, message)
