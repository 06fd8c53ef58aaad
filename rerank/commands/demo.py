"""Demonstration on real text: builds an index, starts a service, and reranks one query."""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table

from rerank import __version__
from rerank.client.client import RerankClient
from rerank.collections import open_collection
from rerank.commands.display import execution_line, one_line
from rerank.commands.progress import show_progress
from rerank.commands.service_process import service_process
from rerank.config import HttpConfig, ServiceConfig
from rerank.errors import IndexMismatch
from rerank.retrieval.build import BuildSettings, build_index
from rerank.retrieval.index import IndexManifest, read_manifest

_HTTP_PORT = 8080
_EXAMPLE = "parse a date string with a known format"


def run_demo(work: Path, console: Console, stay: bool = False) -> None:
    """Reranks one example query, by a service over an index of Python's documentation.

    Args:
        work: folder for the index; an index from an earlier run is reused.
        console: receives the output.
        stay: serve HTTP as well, with its page, and go on until Ctrl-C.

    Raises:
        ConfigError: the service does not start.
    """
    start_s = time.perf_counter()
    manifest = _index(work / "index", console)
    speeds = {stage: manifest.passages / seconds for stage, seconds in manifest.seconds.items() if stage != "dense"}
    console.print(
        f"index    {manifest.passages:,} passages of {manifest.collection}; "
        + ", ".join(f"{stage} {speed:,.0f}/s" for stage, speed in speeds.items())
    )
    http = HttpConfig(listen=f"127.0.0.1:{_free_port(_HTTP_PORT)}", qrels="pydoc") if stay else None
    service = ServiceConfig(listen="127.0.0.1:0", index=work / "index", http=http)
    with service_process(service) as address, RerankClient(address) as client:
        console.print(f"service  gRPC at {address}, in a child process\n")
        _show_example(client, console)
        default = client.list_models().models[0]
        console.print(f"default model: {default.name}, {default.default_strategy}")
        minutes, seconds = divmod(round(time.perf_counter() - start_s), 60)
        console.print(f"all of this took {minutes}:{seconds:02} minutes; a second run keeps the index")
        evaluation = f"eval-beir --collection pydoc --index {work / 'index'} --out {work / 'eval'}"
        console.print(f"quality and time on judged queries: {evaluation} --model default --model pe-rank")
        if http is None:
            console.print("see what happens to a query, in a browser: add --stay")
            return
        example = urlencode({"query": _EXAMPLE, "a.stage": "bm25", "a.model": "default"})
        console.print(f"page: http://{http.listen}/#{example}   (Ctrl-C ends)")
        with suppress(KeyboardInterrupt):
            Event().wait()


def _free_port(preferred: int) -> int:
    """The preferred port of the loopback, or any other if it is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", preferred))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _index(folder: Path, console: Console) -> IndexManifest:
    """The index of this Python's documentation; builds it unless the folder already holds it."""
    collection = open_collection("pydoc")
    try:
        manifest = read_manifest(folder)
        if manifest.collection == collection.name and manifest.versions["rerank"] == __version__:
            return manifest
    except IndexMismatch:
        pass
    from rerank.models.encoder import Encoder  # imports torch, which only this step needs
    from rerank.models.sparse_encoder import SparseEncoder

    shutil.rmtree(folder, ignore_errors=True)
    with show_progress(console, "passages") as progress:
        settings = BuildSettings(encoder_dtype="auto")
        return build_index(collection, folder, Encoder(), progress.report, settings, SparseEncoder())


def _show_example(client: RerankClient, console: Console) -> None:
    """Prints the order of BM25 and the reranked order of the same candidates side by side."""
    found = client.search(_EXAMPLE, first_stage="bm25", depth=20, model="identity", return_passages=True)
    candidates = [{"doc_id": hit.doc_id, "text": hit.text, "score": hit.first_stage_score} for hit in found.results]
    reranked = client.rerank(_EXAMPLE, candidates)
    title = "the default model"
    table = Table(title=f"“{_EXAMPLE}”: the first 20 of BM25, and their order by {title}", title_justify="left")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("BM25", overflow="fold")
    table.add_column(title, overflow="fold")
    table.add_column("BM25 rank", justify="right", no_wrap=True)
    table.add_column(f"passage of {title}")
    text_of = {hit.doc_id: hit.text for hit in found.results}
    for rank, (before, after) in enumerate(zip(found.results[:10], reranked.results[:10], strict=True), start=1):
        text = one_line(text_of[after.doc_id].partition("\n")[2])
        table.add_row(str(rank), before.doc_id, after.doc_id, str(after.original_position + 1), text)
    console.print(table)
    console.print(f"{execution_line(reranked.execution)}\n")
