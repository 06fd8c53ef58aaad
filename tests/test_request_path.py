"""The path of a Rerank request stays short enough to be read: few files, few lines of functions."""

from __future__ import annotations

import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import grpc

import rerank
from rerank.config import FirstModel, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.registry import ModelRegistry, load_ranker
from rerank.reranker import AsyncReranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, numbered_candidates, serving

PACKAGE = Path(rerank.__file__).parent
GENERATED = PACKAGE / "v1"
#: What a reader has to know for one request. The aim is 11 files and 900 lines.
MAX_FILES = 14
MAX_LINES = 1200
#: Code that is part of the function around it.
INNER = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}


@contextmanager
def called_functions() -> Iterator[set[CodeType]]:
    """Collects the code of all functions of the package that threads call which start inside the block."""
    called: set[CodeType] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    threading.settrace(trace)
    try:
        yield called
    finally:
        threading.settrace(None)  # type: ignore[arg-type]


def lines_by_file(called: set[CodeType]) -> dict[Path, dict[str, int]]:
    """File → function → its number of lines. Functions inside a called function are not counted again."""
    lines: dict[Path, dict[str, int]] = defaultdict(dict)
    own = {code for code in called if is_own(code)}
    names = {(code.co_filename, code.co_qualname) for code in own}
    for code in own:
        outer = code.co_qualname.split(".<locals>")[0]
        if outer == code.co_qualname or (code.co_filename, outer) not in names:
            lines[Path(code.co_filename).relative_to(PACKAGE)][code.co_qualname] = len(inspect.getsourcelines(code)[0])
    return lines


def is_own(code: CodeType) -> bool:
    path = Path(code.co_filename)
    return path.is_relative_to(PACKAGE) and not path.is_relative_to(GENERATED) and code.co_name not in INNER


def listing(lines: dict[Path, dict[str, int]]) -> str:
    rows = [f"{sum(of.values()):5}  {file}: {', '.join(sorted(of))}" for file, of in sorted(lines.items())]
    return "\n".join(rows)


def test_request_runs_through_few_files_and_lines(encoder: Encoder) -> None:
    """From the RPC to the ranking by the bundled FIRST model in sliding windows, in float32, as on any processor."""
    model = FirstModel(name="first", ranker="first", window_size=10, precision="float32")
    rankers = {model.name: load_ranker(model, encoder, "cpu")}
    config = ServiceConfig(listen="127.0.0.1:0", models=(model,))
    reranker = AsyncReranker(config, encoder, None, ModelRegistry(config.models, rankers))
    request = pb.RerankRequest(query="q", candidates=numbered_candidates(range(25)))
    with called_functions() as called, serving(reranker) as served, grpc.insecure_channel(served.address) as channel:
        called.clear()  # of the start of the server
        reply = RerankServiceStub(channel).Rerank(request, timeout=TIMEOUT_S)
        while not any(code.co_qualname == "CallsInFlight._leave" for code in set(called)):
            time.sleep(0.01)  # the client has the reply a moment before the service has done with the call
        lines = lines_by_file(set(called))
    assert len(reply.results) == 25
    assert {Path("service/calls.py"), Path("engine/engine.py"), Path("rankers/first.py")} <= lines.keys()
    total = sum(sum(of.values()) for of in lines.values())
    path = f"{len(lines)} files, {total} lines of functions:\n{listing(lines)}"
    assert len(lines) <= MAX_FILES, f"a request runs through more than {MAX_FILES} files: {path}"
    assert total <= MAX_LINES, f"a request runs through more than {MAX_LINES} lines: {path}"
