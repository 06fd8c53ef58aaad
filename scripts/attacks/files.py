"""Attacks by what the service opens itself: upstreams, folders of models, an index, and the file of keys."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from scripts.attacks.target import Attack, Target, repeated
from scripts.random_requests import random_request, words

_TIMEOUT_S, _AT_ONCE, _PAUSE_S = 4.0, 4, 0.05
#: The model that an attack adds.
_MODEL = "hostile"
#: Requests until which an upstream answers as it should, to pass the tests at the start.
_SPARED = 8
_PASSAGES, _KEYS = 200, 6
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n" * 1000
_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_EXTENSION = b"1;" + b"x" * 50_000 + b"\r\n \r\n"
_COMMAND = (sys.executable, "-m", "rerank.commands.cli")


async def _asked(target: Target) -> Counter[str]:
    """The statuses of calls, four at a time, of the model that the attack adds, which may be refused at once."""
    message = random_request(random.Random(0), _MODEL, 10, 300)

    async def ask() -> str:
        await asyncio.sleep(_PAUSE_S)
        return await target.rerank(message, _TIMEOUT_S)

    return await repeated(ask, _AT_ONCE)


def _by_upstream(beginning: bytes, piece: bytes) -> Attack:
    """Calls of a rerank API that becomes hostile: it goes on sending `piece` after `beginning`."""

    @contextmanager
    def prepare(folder: Path) -> Iterator[Mapping[str, object]]:
        answered = iter(range(_SPARED))

        class Upstream(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(b"{}")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if next(answered, None) is None:
                    self._never_end()
                    return
                results = [{"index": n, "relevance_score": 1 / (n + 1)} for n in range(len(body["documents"]))]
                self._send(json.dumps({"results": results}).encode())

            def _send(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _never_end(self) -> None:
                self.close_connection = True
                try:
                    self.wfile.write(beginning)
                    while True:
                        self.wfile.write(piece)
                except OSError:  # the service has ended the connection
                    pass

            def log_message(self, *_: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            served = {"kind": "jina", "url": f"http://127.0.0.1:{server.server_port}", "model": "x"}
            yield {"models": [{"name": _MODEL, "ranker": "api", "served_by": served}]}
            server.shutdown()

    return Attack(_asked, prepare)


def _by_folder(damage: Callable[[Path], None]) -> Attack:
    """Calls of a cross-encoder of one layer, loaded when it is asked for, whose folder is damaged."""

    @contextmanager
    def prepare(folder: Path) -> Iterator[Mapping[str, object]]:
        from transformers import BertConfig, BertForSequenceClassification

        from rerank.checkpoints.bundled import SPLADE_TINY, locate_sparse_encoder

        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((locate_sparse_encoder(SPLADE_TINY) / name).read_bytes())
        sizes: dict[str, Any] = {"num_labels": 1, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        BertForSequenceClassification(BertConfig(**sizes)).save_pretrained(folder)
        damage(folder)
        yield {"models": [{"name": _MODEL, "ranker": "cross-encoder", "path": str(folder), "load": "request"}]}

    return Attack(_asked, prepare)


def _changed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def _write_pieces(folder: Path) -> None:
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [piece] * 100_000, "pair": [piece], "special_tokens": {}}
    _changed(folder / "tokenizer.json", lambda content: content.update(post_processor=template))


def _write_layers(folder: Path) -> None:
    _changed(folder / "config.json", lambda content: content.update(num_hidden_layers=10**9))


def _write_pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


@contextmanager
def _index(folder: Path) -> Iterator[Mapping[str, object]]:
    """A service with an index of random passages."""
    draw = random.Random(0)
    rows = ({"_id": f"d{number}", "text": words(draw, 300)} for number in range(_PASSAGES))
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ("--collection", str(folder), "--out", str(folder / "index"))
    subprocess.run([*_COMMAND, "index", *options], check=True, capture_output=True)
    yield {"index": str(folder / "index")}


async def _shortened_vectors(target: Target) -> Counter[str]:
    draw = random.Random(0)

    async def cut() -> None:
        await asyncio.sleep(2)
        path = target.folder / "index" / "vectors.npy"
        os.truncate(path, path.stat().st_size // 2)

    cutting = asyncio.create_task(cut())
    ends = await repeated(lambda: target.search(words(draw, 30), "pe-rank", _TIMEOUT_S), _AT_ONCE)
    await cutting
    return ends


async def _keys_added_at_once(target: Target) -> Counter[str]:
    path = target.folder / "keys.yaml"
    options = [*_COMMAND, "keys", "add"]
    started = [
        await asyncio.create_subprocess_exec(
            *options, f"key-{number}", "--keys", str(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for number in range(_KEYS)
    ]
    told = [await process.wait() for process in started].count(0)
    return Counter({"told": told, "in the file": len(yaml.safe_load(path.read_text(encoding="utf-8")))})


ATTACKS: dict[str, Attack] = {
    # A rerank API that answers `100 Continue` without end, and one whose chunks of one byte have extensions of 50 kB.
    "endless-continue": _by_upstream(b"", _CONTINUE),
    "endless-chunk-extensions": _by_upstream(_CHUNKED, _EXTENSION),
    # A tokenizer.json with a template of 100,000 pieces.
    "folder-of-many-pieces": _by_folder(_write_pieces),
    # A billion layers in config.json.
    "folder-of-many-layers": _by_folder(_write_layers),
    # The file of the weights is a pipe that nobody writes to.
    "folder-without-end": _by_folder(_write_pipe),
    # Four searches at a time; in the middle, the file of the vectors is cut to half.
    "shortened-vectors": Attack(_shortened_vectors, _index),
    # Six processes that add a key to one file at once: as many must be in it as were told.
    "keys-added-at-once": Attack(_keys_added_at_once),
}
