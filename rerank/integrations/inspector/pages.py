"""The files of the inspector's page, and the headers that keep anything else from running on it."""

from __future__ import annotations

import os
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

#: Allows scripts, styles and calls of this origin alone. No script can turn a text into markup (Trusted Types).
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser asks each time whether a file has changed
}


class _Files(StaticFiles):
    """Static files with the headers of the page."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """The routes of the page at /, and of its styles and scripts below /inspector/static."""
    folder = str(files("rerank.integrations.inspector") / "static")

    async def page(request: Request) -> Response:
        return FileResponse(f"{folder}/index.html", headers=_HEADERS)

    return [Route("/", page, methods=["GET"]), Mount("/inspector/static", _Files(directory=folder))]
