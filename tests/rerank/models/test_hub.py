"""A model that cannot be had is refused by one question to the hub, or by none."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.hub import check_findable
from rerank.models.loading import load_causal_lm, load_tokenizer_of


class Hub:
    """A server in the hub's place, which knows org/known."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, _, name = self.path.removeprefix("/api/").partition("/")
                if kind == "models":  # the client asks further questions, too
                    hub.asked.append(name)
                status, code = (200, "") if name == "org/known" else (404, "RepoNotFound")
                body = json.dumps({"id": name}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-Error-Code", code)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of the hub, and an empty working directory."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, no_cache: Path) -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch, no_cache: Path) -> Iterator[None]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nothing listens
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        yield


def check(name: str) -> None:
    check_findable(name, "--base", "give the folder of a model")


def test_model_that_the_hub_has_passes(hub: Hub) -> None:
    check("org/known")
    assert hub.asked == ["org/known"]


def test_hub_that_cannot_be_asked_is_an_error(hub: Hub, unreachable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--base: org/model is neither .* cannot be asked \(.+\); give the folder"):
        check("org/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"cannot be asked \(.*HF_HUB_OFFLINE"):
        check("org/known")


@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_cached_model_passes_without_a_question(unreachable: None, no_cache: Path, file: str) -> None:
    model = no_cache / "models--org--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "snapshots" / "abc" / file).write_text("{}")
    check("org/model")


def test_loaders_ask_once(hub: Hub, tmp_path: Path) -> None:
    """Their libraries would ask again and again, for half a minute to a minute."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f"base of the adapter {adapter}: org/base is neither")):
        load_causal_lm(adapter, torch.device("cpu"))
    with pytest.raises(ConfigError, match="tokenizer: org/tokenizer is neither"):
        load_tokenizer_of("org/tokenizer")
    with pytest.raises(ConfigError, match="encoder: org/encoder is neither"):
        Encoder("org/encoder", "cpu")
    assert hub.asked == ["org/base", "org/tokenizer", "org/encoder"]
