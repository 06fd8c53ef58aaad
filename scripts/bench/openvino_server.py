"""A server of a causal LM by OpenVINO, with as much of vLLM's API as FIRST needs.

    optimum-cli export openvino --model FOLDER --task text-generation-with-past --weight-format int8 --sym EXPORTED
    python scripts/bench/openvino_server.py --model EXPORTED --name NAME --port 8002

Both run in an environment with optimum-intel, nncf and openvino, and need nothing of this project. The export
compresses the weights to int8, one scale per channel; OpenVINO itself quantises the activations, in groups of `--group`
values. Prompts are read one after the other, each in one pass.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: Token ids → (vocabulary,) logits after the last one.
Read: TypeAlias = Callable[[Sequence[int]], npt.NDArray[np.float32]]

_CONTEXT_TOKENS = 4096


def compiled(folder: Path, precision: str, group: int) -> Read:
    """The exported model of a folder, compiled for one core."""
    openvino, opset13 = import_module("openvino"), import_module("openvino.opset13")  # no dependency of the project
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    head = model.output("logits").get_node().input_value(0).get_node()
    last = opset13.slice(head.input_value(0), [-1], [np.iinfo(np.int64).max], [1], [1])
    head.input(0).replace_source_output(last.output(0))  # the logits of the other positions are not needed
    model.validate_nodes_and_infer_types()
    options = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
    }
    request = openvino.compile_model(model, "CPU", options).create_infer_request()

    def read(prompt: Sequence[int]) -> npt.NDArray[np.float32]:
        n = len(prompt)
        request.reset_state()
        request.infer(
            {
                "input_ids": np.array([prompt]),
                "attention_mask": np.ones((1, n), np.int64),
                "position_ids": np.arange(n)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        return np.array(request.get_tensor("logits").data[0, -1], np.float32)

    return read


class Handler(BaseHTTPRequestHandler):
    """Answers GET /health, GET /v1/models and POST /v1/completions."""

    protocol_version = "HTTP/1.1"
    #: Otherwise the body, written after the headers, waits until the client has acknowledged them.
    disable_nagle_algorithm = True

    def __init__(self, read: Read, turn: threading.Lock, name: str, *connection: Any) -> None:
        self._read, self._turn, self._name = read, turn, name
        super().__init__(*connection)

    def do_GET(self) -> None:
        card = {"id": self._name, "max_model_len": _CONTEXT_TOKENS}
        known: dict[str, Any] = {"/health": {}, "/v1/models": {"data": [card]}}
        self._answer(200 if self.path in known else 404, known.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/completions":
            self._answer(200, {"choices": [{"text": "", "logprobs": {"top_logprobs": [self._log_probs(body)]}}]})
        else:
            self._answer(404, None)

    def _log_probs(self, body: Any) -> dict[str, float]:
        with self._turn:
            logits = self._read(body["prompt"])
        log_probs = logits - np.logaddexp.reduce(logits)
        return {f"token_id:{each}": float(log_probs[each]) for each in body["logprob_token_ids"]}

    def _answer(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *message: object) -> None:
        """Logs nothing."""


def server(read: Read, name: str, port: int) -> ThreadingHTTPServer:
    """A server that listens at a port of this machine; 0: any free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, read, threading.Lock(), name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the exported causal LM")
    parser.add_argument("--name", required=True, help="name of the model in requests")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="bf16", help="of all but linear layers")
    parser.add_argument("--group", type=int, default=32, help="activations that share a scale; 0: none are quantised")
    settings = parser.parse_args()
    read = compiled(settings.model, settings.precision, settings.group)
    server(read, settings.name, settings.port).serve_forever()


if __name__ == "__main__":
    main()
