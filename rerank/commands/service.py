"""`rerank serve`, `rerank index` and `rerank demo`. Torch is imported when a command needs it."""

from __future__ import annotations

import logging
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer
from rich.table import Table

from rerank.commands import options, service_process
from rerank.commands.app import Command
from rerank.commands.display import execution_line, one_line, warnings_of
from rerank.commands.run import console, quiet_libraries
from rerank.config import HttpConfig, ServiceConfig
from rerank.config.service import LogLevel
from rerank.errors import IndexMismatch
from rerank.retrieval.index_format import DenseKind
from rerank.types import Precision

if TYPE_CHECKING:
    from rerank.client.client import RerankClient

#: The demonstration's preferred HTTP port.
_HTTP_PORT = 8080
#: The demonstration's query.
_EXAMPLE = "parse a date string with a known format"
#: Number of candidates of the demonstration.
_DEPTH = 20
#: Number of passages in a window of FIRST in the demonstration.
_WINDOW = 10

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Settings of `rerank serve`."""

    config: Annotated[Path | None, "YAML file with the settings of the service."] = None
    listen: Annotated[str | None, "HOST:PORT to listen on; port 0 chooses a free port."] = None
    index: Annotated[Path | None, "Index folder from `rerank index`; required for search."] = None
    encoder: options.Encoder = None
    device: Annotated[str | None, "auto, cpu, cuda or cuda:N; default: auto."] = None
    model: Annotated[
        list[str] | None,
        "Name of a bundled model, such as pe-rank-first; or NAME=PATH, where PATH is ORGANISATION/MODEL on the "
        "Hugging Face hub, with or without @REVISION, or the folder of a checkpoint with a manifest, as training "
        "writes it. For other checkpoints, PROFILE:PATH or RANKER:PATH says how the model ranks. Without NAME=, the "
        "model is named `default`. It precedes the models of --config and replaces the bundled model of the same "
        "name. Repeatable.",
    ] = None
    http: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            help="Also serve HTTP at this address; without one, at the address in --config or at 127.0.0.1:8080.",
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        "A host name, in addition to localhost, that the ports of HTTP and of the metrics answer to without keys, "
        "such as host.docker.internal. Repeatable.",
    ] = None
    qrels: Annotated[
        str | None, "Judgements that the page at / of the HTTP port shows: pydoc, or a folder in BEIR layout."
    ] = None
    keys: Annotated[Path | None, "File of API keys, which `rerank keys add` writes; calls then need one."] = None
    insecure: Annotated[
        bool, options.flag("--insecure", "Listen on other addresses than the loopback without keys.")
    ] = False
    log_level: Annotated[LogLevel | None, "Lowest level that is logged; default: info."] = None
    check: Annotated[
        bool,
        options.flag(
            "--check", "Check the settings, load encoder, index and all models, test them, and exit without serving."
        ),
    ] = False
    stop_at_eof: Annotated[
        bool, options.flag("--stop-at-eof", "Stop when standard input ends, as when the parent process dies.")
    ] = False

    @property
    def overrides(self) -> dict[str, object]:
        """The settings of the service by name; None for a setting whose option was not given."""
        names = ("listen", "index", "encoder", "device", "keys")
        http = {"listen": self.http or None, "allowed_hosts": self.allowed_host or None, "qrels": self.qrels}
        given = {name: value for name, value in http.items() if value is not None}
        return {
            **{name: getattr(self, name) for name in names},
            "http": given if self.http is not None or given else None,
            "telemetry": {"log_level": self.log_level} if self.log_level else None,
            "insecure": self.insecure or None,
        }


class ServeCommand(Command):
    """Reads `--http` alone as `--http=`, because typer requires values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        following = [*args[1:], "--"]
        is_alone = [word == "--http" and after.startswith("-") for word, after in zip(args, following, strict=True)]
        read = ["--http=" if alone else word for word, alone in zip(args, is_alone, strict=True)]
        return super().parse_args(ctx, read)


def serve(settings: ServeSettings) -> None:
    """Start the service: gRPC, and HTTP if asked for.

    Options override the settings of --config.
    """
    import asyncio

    from rerank.config import load_config
    from rerank.config.named import named_model
    from rerank.service.startup import check_before_loading, overlooked_models
    from rerank.telemetry.logs import set_up_logging

    models = [named_model(name_and_path) for name_and_path in settings.model or ()]
    config = load_config(settings.config, models, **settings.overrides)
    check_before_loading(config, binds=not settings.check)
    set_up_logging(config.telemetry)
    quiet_libraries()
    logging.getLogger(__name__).info("the settings can be used; the libraries of the models are being loaded")
    if settings.check:
        from rerank.reranking.reranker import check_models  # imports torch

        check_models(config)
        for line in overlooked_models(config.models):
            console.print(line)
        console.print(f"the settings can be used: {len(config.models)} models at {config.listen}")
        return
    if settings.stop_at_eof:
        service_process.stop_at_eof()
    from rerank.ports import server  # imports torch, and follows the checks, which take milliseconds

    asyncio.run(server.serve(config, service_process.announce))


def index(
    collection: Annotated[
        str,
        typer.Option(
            help='pydoc, a folder in BEIR layout with a corpus.jsonl, or such a file, plain or gzip: {"_id": …, '
            '"text": …} per line, optionally "title", which is put before the text. An _id (or doc_id, docid, id) is a '
            "string or an integer, and the text may be in contents, passage, segment, content or body. Other fields "
            "are ignored. A file .tsv has id, tab, text, or names of its columns in the first line."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to create; it appears when the index is complete.")],
    encoder: options.Encoder = None,
    sparse_encoder: Annotated[
        str,
        typer.Option(
            help="Folder of a learned sparse model (SPLADE), whose vectors are stored, so that passages of the index "
            "cost no pass of the model when they are ranked; none: the index has no sparse vectors."
        ),
    ] = "splade-tiny",
    device: Device = "auto",
    dense: Annotated[
        DenseKind,
        typer.Option(
            help="Dense search: flat is exact; hnsw is approximate, for millions of passages. Its recall is printed."
        ),
    ] = "flat",
    precision: Annotated[
        Precision,
        typer.Option(help="Precision of the encoder; auto: bfloat16 on a CPU that has it, otherwise float32."),
    ] = "auto",
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Processes that encode, and threads of Lucene and FAISS; 0: one for each processor, but one process "
            "on a GPU.",
        ),
    ] = 0,
) -> None:
    """Build an index for BM25 and dense retrieval.

    A build that was killed goes on when the command is repeated.
    """
    from rerank.collections import open_collection
    from rerank.commands.progress import show_progress

    opened = open_collection(collection)
    from rerank.models.encoder import DEFAULT_ENCODER, Encoder  # imports torch
    from rerank.models.sparse_encoder import SparseEncoder
    from rerank.retrieval.build import BuildSettings, build_index
    from rerank.retrieval.dense import faiss_package

    faiss_package()  # a search needs it, and says so before the collection is encoded
    sparse = None if sparse_encoder == "none" else SparseEncoder(sparse_encoder, device)
    settings = BuildSettings(dense, precision, workers)
    loaded = Encoder(encoder or DEFAULT_ENCODER, device)
    with show_progress(console, "passages") as progress:
        manifest = build_index(opened, out, loaded, progress.report, settings, sparse)
    console.print(f"{out}: {manifest.passages:,} passages of {manifest.collection}")
    for stage, seconds in manifest.seconds.items():
        if stage != "dense" or dense != "flat":
            note = ", summed over the workers" if stage in ("vectors", "sparse vectors") else ""
            note += f", in {manifest.encoder_dtype}" if stage == "vectors" else ""
            console.print(f"  {stage}: {seconds:,.1f} s ({manifest.passages / seconds:,.0f} passages/s{note})")
    if manifest.encoder_dtype != "float32":
        console.print(f"  mean cosine of the vectors to those in float32: {manifest.cosine_to_float32:.5f}")
    if dense != "flat":
        console.print(f"  recall@100 of {dense} against flat: {manifest.dense_recall_at_100:.3f}")


def verify(folder: Annotated[Path, typer.Argument(help="Folder of the index.", show_default=False)]) -> None:
    """Check an index's files against the hashes in its manifest."""
    from rerank.retrieval.index import verify_index

    manifest = verify_index(folder)
    console.print(f"{folder}: {len(manifest.files)} files are as they were built")


def demo(
    work: Annotated[Path, typer.Option(help="Folder for the index, which a second run reuses.")] = Path("rerank-demo"),
    stay: Annotated[
        bool, options.flag("--stay", "Keep serving until Ctrl-C, with a page for the browser at / over HTTP.")
    ] = False,
) -> None:
    """Index Python's documentation and rerank a query over it.

    The command starts a service in a child process.
    """
    from rerank.client.client import RerankClient

    start_s, folder = time.perf_counter(), work / "index"
    if not _is_demo_index(folder):
        shutil.rmtree(folder, ignore_errors=True)
        index("pydoc", folder)
    http = HttpConfig(listen=f"127.0.0.1:{_free_port(_HTTP_PORT)}", qrels="pydoc") if stay else None
    config = ServiceConfig(listen="127.0.0.1:0", index=folder, http=http)
    with service_process.service_process(config) as address, RerankClient(address) as client:
        console.print(f"service: gRPC at {address}, in a child process\n")
        _show_example(client)
        _show_first(client)
        default = client.list_models().models[0]
        console.print(f"default model: {default.name}, {default.default_strategy}")
        minutes, seconds = divmod(round(time.perf_counter() - start_s), 60)
        console.print(f"all of this took {minutes}:{seconds:02} minutes; a second run keeps the index")
        evaluation = f"eval-beir --collection pydoc --index {folder} --out {work / 'eval'}"
        console.print(f"quality and time on judged queries: {evaluation} --model default --model pe-rank")
        if http is None:
            console.print("see what happens to a query, in a browser: add --stay")
            return
        console.print(f"page: http://{http.listen}/#{_compared()}   (Ctrl-C ends)")
        with suppress(KeyboardInterrupt):
            Event().wait()


def _compared() -> str:
    """The fragment of the page's address with the default beside FIRST, which reads the list in windows."""
    first = {"b.stage": "bm25", "b.model": "first", "b.strategy": "sliding", "b.window": str(_WINDOW)}
    default = {"a.stage": "bm25", "a.model": "default"}
    return urlencode({"query": _EXAMPLE, "depth": str(_DEPTH), "compare": "1", **default, **first})


def _is_demo_index(folder: Path) -> bool:
    """True if the folder holds the index of this Python's documentation, made by this version."""
    from rerank import __version__
    from rerank.collections import open_collection
    from rerank.retrieval.index import read_manifest

    try:
        manifest = read_manifest(folder)
    except IndexMismatch:
        return False
    return manifest.collection == open_collection("pydoc").name and manifest.versions["rerank"] == __version__


def _free_port(preferred: int) -> int:
    """The preferred port of the loopback, or any other if it is taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", preferred))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _show_example(client: RerankClient) -> None:
    """Prints the order of BM25 and the reranked order of the same candidates side by side."""
    found = client.search(_EXAMPLE, first_stage="bm25", depth=_DEPTH, model="identity", return_passages=True)
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
    for line in (execution_line(reranked.execution), *warnings_of(reranked.execution)):
        console.print(line)
    console.print()


def _show_first(client: RerankClient) -> None:
    """Prints how FIRST orders the same candidates: the windows that it reads, one after the other, and their order.

    The window slides from the end of the list to its beginning, so that a good passage may rise from any position.
    """
    strategy = {"kind": "sliding", "window_size": _WINDOW}
    options: dict[str, Any] = {"model": "first", "strategy": strategy, "include_trace": True}
    found = client.search(_EXAMPLE, first_stage="bm25", depth=_DEPTH, **options)
    candidates = sorted(found.results, key=lambda result: result.original_position)
    title = f"FIRST, a language model that reads {_WINDOW} passages at once: its windows over the same candidates"
    table = Table(title=title, title_justify="left")
    table.add_column("window", justify="right", no_wrap=True)
    table.add_column("BM25 ranks that it reads", overflow="fold")
    table.add_column("in its order", overflow="fold")
    table.add_column("best of the window", overflow="fold")
    for number, window in enumerate(found.trace.windows, start=1):
        ordered = [window.positions[index] for index in window.permutation]
        ranks = (", ".join(str(position + 1) for position in row) for row in (window.positions, ordered))
        table.add_row(str(number), *ranks, candidates[ordered[0]].doc_id)
    console.print(table)
    best = ", ".join(result.doc_id for result in found.results[:3])
    for line in (f"its first three: {best}", execution_line(found.execution), *warnings_of(found.execution)):
        console.print(line)
    console.print()
