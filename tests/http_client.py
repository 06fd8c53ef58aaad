"""A client of the HTTP port of a service."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

TIMEOUT_S = 60
JSON_TYPE = {"content-type": "application/json"}


@dataclass(frozen=True)
class Reply:
    """An HTTP response with its JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class HttpClient:
    """A client of the HTTP port of a service, with a connection per request."""

    address: str

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        with closing(HTTPConnection(*self.host_and_port, timeout=TIMEOUT_S)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, lower, response.read())

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, document: object, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", path, json.dumps(document).encode(), JSON_TYPE | named)

    def exchange(self, sent: bytes) -> bytes:
        """What the port answers to these bytes, until it closes the connection."""
        received = b""
        with socket.create_connection(self.host_and_port, TIMEOUT_S) as connection:
            connection.sendall(sent)
            with suppress(ConnectionResetError):  # if more was sent than was read
                while part := connection.recv(65_536):
                    received += part
        return received


def texts(*numbers: float) -> list[str]:
    """Texts whose relevance is the number in them."""
    return [f"relevance {number}" for number in numbers]
