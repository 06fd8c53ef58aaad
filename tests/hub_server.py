"""A hub on this machine, as far as huggingface_hub asks it, with the faults of hubs, networks and repositories."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class HubServer:
    """Serves folders as models, and files below `raw` as a server of repositories does.

    Attributes:
        models: name on the hub → folder.
        gated: names whose files need an accepted licence.
        broken: names of files whose content is another one than their hash says, of the same size.
        cut: names of files whose connection ends in the middle.
        raw: path → content of files of repositories.
        asked: paths of all requests but HEAD.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    raw: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def downloaded(self) -> set[str]:
        """The files that were sent, without the name of their model."""
        return {path.partition("/resolve/")[2].partition("/")[2] for path in self.asked if "/resolve/" in path}

    def commit(self, name: str) -> str:
        """40 hexadecimal digits that change when a file changes."""
        files = (path.name.encode() + path.read_bytes() for path in files_of(self.models[name]))
        return hashlib.sha1(b"".join(files)).hexdigest()

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Returns status, body and headers for a path."""
        if (content := self.raw.get(path)) is not None:
            return 200, content, {}
        for name, folder in self.models.items():
            api = f"/api/models/{name}"
            if path.startswith(f"/{name}/resolve/"):
                return self._file(name, folder, path.removeprefix(f"/{name}/resolve/").partition("/")[2])
            if path.startswith(f"{api}/tree/"):
                return 200, json.dumps([_listed(folder, file) for file in files_of(folder)]).encode(), {}
            if path in (api, f"{api}/revision/main", f"{api}/revision/{self.commit(name)}"):
                siblings = [
                    {"rfilename": file.relative_to(folder).as_posix(), "size": file.stat().st_size}
                    for file in files_of(folder)
                ]
                body = {"id": name, "sha": self.commit(name), "siblings": siblings, "tags": [], "private": False}
                return 200, json.dumps(body).encode(), {}
            if path.startswith(f"{api}/revision/"):
                return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}

    def _file(self, name: str, folder: Path, file: str) -> tuple[int, bytes, dict[str, str]]:
        commit = {"X-Repo-Commit": self.commit(name)}
        if name in self.gated:
            return 403, b"", {"X-Error-Code": "GatedRepo"}
        if not (folder / file).is_file():
            return 404, b"", commit | {"X-Error-Code": "EntryNotFound"}
        content = (folder / file).read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        if not file.endswith(".safetensors"):  # as git names a file that is not in LFS
            etag = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        sent = bytes(len(content)) if file in self.broken else content
        return 200, sent, commit | {"ETag": f'"{etag}"'}


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _listed(folder: Path, file: Path) -> dict[str, object]:
    path = file.relative_to(folder).as_posix()
    return {"type": "file", "path": path, "size": file.stat().st_size, "oid": hashlib.sha1(b"").hexdigest()}


@contextmanager
def running_hub() -> Iterator[HubServer]:
    """Yields a hub without models, which ends with the block."""
    hub = HubServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if self.command == "GET":
                hub.asked.append(path)
            status, body, headers = hub.answer(path)
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET" and path.rpartition("/")[2] in hub.cut:
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            elif self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def use_hub(url: str, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes huggingface_hub ask a hub, with a cache of its own."""
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    patch.setattr("huggingface_hub.constants.ENDPOINT", url)
    patch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
