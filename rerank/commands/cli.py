"""`rerank serve | index | search | rank | demo`. Heavy imports wait until a command needs them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.json_format import MessageToJson

from rerank.commands.display import plain_console
from rerank.errors import ConfigError, InvalidRequest, RerankError
from rerank.types import FeedbackMethod, FirstStage, StrategyKind

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = plain_console()

DEFAULT_TARGET = "127.0.0.1:50051"


Target = Annotated[str, typer.Option(help="HOST:PORT of a running service.")]
ModelName = Annotated[str, typer.Option("--model", help="A model that the service lists; empty: its default.")]
_INT32_MAX = 2**31 - 1  # what the wire holds
TopN = Annotated[int, typer.Option(max=_INT32_MAX, help="How many to return; 0: all.")]
StrategyOption = Annotated[
    StrategyKind | None,
    typer.Option(
        "--strategy", parser=StrategyKind, metavar=f"[{'|'.join(StrategyKind)}]", help="Default: the model's."
    ),
]
WindowSize = Annotated[int, typer.Option(max=_INT32_MAX, help="Passages read at once; 0: the model's default.")]
Stride = Annotated[int, typer.Option(max=_INT32_MAX, help="Passages between two windows; 0: half a window.")]
EarlyStop = Annotated[bool, typer.Option("--early-stop", help="sliding: end when two windows change nothing.")]
Preranker = Annotated[
    str, typer.Option("--preranker", "--first-model", help="cascade: the model that orders all candidates first.")
]
Instruction = Annotated[str, typer.Option(help="What counts as relevant, in words.")]
AllowPartial = Annotated[
    bool, typer.Option("--allow-partial", help="At the deadline, take the best order so far instead of an error.")
]
TimeoutS = Annotated[float, typer.Option(help="Deadline of the call, in seconds.")]
Feedback = Annotated[
    bool, typer.Option("--feedback", help="The ranking moves the query's vector, which retrieves once more.")
]
FeedbackOption = Annotated[FeedbackMethod, typer.Option(help="--feedback: how the vector moves.")]
Json = Annotated[bool, typer.Option("--json", help="Print the reply as JSON, for programs.")]


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file with settings; see rerank/config.py.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = None,
    index: Annotated[Path | None, typer.Option(help="Folder that `rerank index` wrote; needed for Search.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Name or folder of the encoder.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH of a checkpoint that our training wrote; served before the file's models."),
    ] = None,
    stop_at_eof: Annotated[bool, typer.Option("--stop-at-eof", help="Stop when standard input ends.")] = False,
) -> None:
    """Start the gRPC service."""
    from rerank.config import load_config
    from rerank.manifest import served_model

    own = [served_model(name_and_path) for name_and_path in model or ()]
    settings = load_config(config, own, listen=listen, index=index, encoder=encoder, device=device)
    from rerank.service import process

    if stop_at_eof:
        process.stop_at_eof()
    from rerank.service.server import serve as serve_until_signal  # imports torch; the settings may fail before

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    asyncio.run(serve_until_signal(settings, process.announce))


@app.command()
def index(
    collection: Annotated[str, typer.Option(help="'pydoc', or a folder in BEIR layout (corpus.jsonl).")],
    out: Annotated[Path, typer.Option(help="The folder to make; it appears when the index is complete.")],
    encoder: Annotated[str | None, typer.Option(help="Name or folder of the encoder.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    hnsw: Annotated[bool, typer.Option("--hnsw", help="Approximate dense search (HNSW) instead of exact.")] = False,
) -> None:
    """Build an index: BM25, vectors and passages."""
    from rerank.collections import open_collection
    from rerank.commands.display import indexing_progress
    from rerank.models.encoder import DEFAULT_ENCODER, Encoder
    from rerank.retrieval.index import build_index

    opened = open_collection(collection)
    with indexing_progress(console) as progress:
        manifest = build_index(opened, out, Encoder(encoder or DEFAULT_ENCODER, device), hnsw, progress.report)
    console.print(
        f"{out}: {manifest.passages:,} passages of {manifest.collection}; "
        f"read in {manifest.read_s:.1f} s ({manifest.passages / manifest.read_s:,.0f}/s), "
        f"encoded in {manifest.encode_s:.1f} s ({manifest.passages / manifest.encode_s:,.0f}/s)"
    )


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    target: Target = DEFAULT_TARGET,
    first_stage: Annotated[FirstStage, typer.Option(help="The retriever.")] = FirstStage.HYBRID_RRF,
    depth: Annotated[int, typer.Option(max=_INT32_MAX, help="Candidates that the first stage hands over.")] = 100,
    model: ModelName = "",
    top_n: TopN = 10,
    strategy: StrategyOption = None,
    window_size: WindowSize = 0,
    stride: Stride = 0,
    early_stop: EarlyStop = False,
    preranker: Preranker = "",
    instruction: Instruction = "",
    timeout_s: TimeoutS = 60.0,
    allow_partial: AllowPartial = False,
    feedback: Feedback = False,
    feedback_method: FeedbackOption = FeedbackMethod.WEIGHTED_RANKNET,
    as_json: Json = False,
) -> None:
    """Retrieve and rerank, at a running service."""
    from rerank.service.client import RerankClient

    with RerankClient(target) as client:
        reply = client.search(
            query,
            timeout_s,
            first_stage=f"FIRST_STAGE_{first_stage.name}",
            depth=depth,
            model=model,
            top_n=top_n,
            strategy=strategy_message(strategy, window_size, stride, early_stop, preranker),
            instruction=instruction,
            return_passages=True,
            allow_partial=allow_partial,
            feedback=feedback_message(feedback_method) if feedback else None,
        )
    _show(reply, f"{query}   [{reply.first_stage_hits} candidates from {first_stage.value}]", as_json)


@app.command()
def rank(
    candidates: Annotated[
        Path, typer.Argument(help='JSON lines: {"doc_id": …, "text": …, "score": optional}; - reads stdin.')
    ],
    query: Annotated[str, typer.Option(help="What the candidates answer.")],
    target: Target = DEFAULT_TARGET,
    model: ModelName = "",
    top_n: TopN = 0,
    strategy: StrategyOption = None,
    window_size: WindowSize = 0,
    stride: Stride = 0,
    early_stop: EarlyStop = False,
    preranker: Preranker = "",
    instruction: Instruction = "",
    timeout_s: TimeoutS = 60.0,
    allow_partial: AllowPartial = False,
    as_json: Json = False,
) -> None:
    """Rerank the candidates in a file, at a running service."""
    from rerank.service.client import RerankClient

    with RerankClient(target) as client:
        reply = client.rerank(
            query,
            _read_candidates(candidates),
            timeout_s,
            model=model,
            top_n=top_n,
            strategy=strategy_message(strategy, window_size, stride, early_stop, preranker),
            instruction=instruction,
            return_passages=True,
            allow_partial=allow_partial,
        )
    _show(reply, query, as_json)


@app.command()
def demo(
    work: Annotated[Path, typer.Option(help="Folder for the index; a second run finds it there.")] = Path(
        "rerank-demo"
    ),
    ranker: Annotated[str, typer.Option(help="The model to show at work: pe-rank or first.")] = "pe-rank",
) -> None:
    """Index Python's documentation, start a service, query it, and print what reranking changed."""
    try:
        from rerank.commands.demo import run_demo
    except ModuleNotFoundError as error:
        raise ConfigError(f"the demo measures with {error.name}, which is missing; install rerank[eval]") from error

    run_demo(work, console, ranker)


def strategy_message(
    name: StrategyKind | None, window_size: int, stride: int, early_stop: bool = False, preranker: str = ""
) -> pb.Strategy:
    """The options as the wire has them; 0 and None mean the model's default."""
    from rerank.v1 import rerank_pb2 as pb

    kind = name.name if name else "UNSPECIFIED"
    return pb.Strategy(
        kind=f"STRATEGY_KIND_{kind}",
        window_size=window_size,
        stride=stride,
        early_stop=early_stop,
        preranker=preranker,
    )


def feedback_message(method: FeedbackMethod) -> pb.Feedback:
    """Feedback by this method, with its defaults."""
    from rerank.v1 import rerank_pb2 as pb

    return pb.Feedback(method=f"FEEDBACK_METHOD_{method.name}")


def _read_candidates(path: Path) -> list[pb.Candidate]:
    """Raises: InvalidRequest when the file or a line of it cannot be read; the message names the line."""
    try:
        lines = sys.stdin.readlines() if str(path) == "-" else path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("candidates", f"{path} cannot be read: {error}") from error
    return [_read_candidate(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _read_candidate(line: str, place: str) -> pb.Candidate:
    from rerank.v1 import rerank_pb2 as pb

    try:
        row: Any = json.loads(line)
        return pb.Candidate(doc_id=row["doc_id"], text=row["text"], first_stage_score=row.get("score"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest("candidates", f'{place}: expected {{"doc_id": …, "text": …}} ({error!r})') from error


def _show(reply: pb.RerankResponse | pb.SearchResponse, title: str, as_json: bool) -> None:
    from rerank.commands.display import fields_table, results_table
    from rerank.v1 import rerank_pb2 as pb

    if as_json:
        print(MessageToJson(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
        return
    console.print(results_table(title, reply.results))
    console.print(fields_table("what ran", reply.execution))
    if isinstance(reply, pb.SearchResponse) and reply.HasField("feedback"):
        console.print(fields_table("what feedback did", reply.feedback))


def main() -> None:
    """The console command."""
    run(app)


def run(command: Callable[[], object]) -> None:
    """Runs a command; what the caller can mend ends with one line on stderr and exit code 2."""
    try:
        command()
    except RerankError as error:
        plain_console(stderr=True).print(f"error: {error}", soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
