"""`rerank search`, `rerank rank`, `rerank models` and `rerank health`: calls of a running service."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank.commands import options
from rerank.commands.display import execution_line, feedback_line, fields_table, models_table, results_table
from rerank.commands.run import console
from rerank.readers.candidates import FIELDS, read_candidates
from rerank.types import FeedbackMethod, FirstStage

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rerank.client.client import RerankClient
    from rerank.v1 import rerank_pb2 as pb

DEFAULT_TARGET = "127.0.0.1:50051"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankingSettings:
    """Settings that `search` and `rank` share."""

    target: options.Target = DEFAULT_TARGET
    model: options.ModelName = ""
    strategy: options.StrategyOption = None
    window_size: options.WindowSize = 0
    stride: options.Stride = 0
    early_stop: options.EarlyStop = False
    preranker: options.Preranker = ""
    interpolation: options.Interpolation = None
    instruction: options.Instruction = ""
    min_relevance: options.MinRelevance = None
    timeout_s: options.TimeoutS = 60.0
    tls_ca: options.TLSCA = None
    max_chunks_per_doc: options.MaxChunksPerDoc = 0
    allow_partial: options.AllowPartial = False
    on_failure: options.OnFailureOption = None
    verbose: options.Verbose = False
    as_json: options.Json = False

    def fields(self) -> dict[str, Any]:
        """The fields of the request that these settings fill."""
        return {
            "model": self.model,
            "strategy": {
                "kind": self.strategy,
                "window_size": self.window_size,
                "stride": self.stride,
                "early_stop": self.early_stop,
                "preranker": self.preranker,
                "interpolation": None if self.interpolation is None else {"first_stage": self.interpolation},
            },
            "instruction": self.instruction,
            "min_relevance": self.min_relevance,
            "max_chunks_per_doc": self.max_chunks_per_doc,
            "allow_partial": self.allow_partial,
            "on_failure": self.on_failure,
            "return_passages": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings(_RankingSettings):
    """Settings of `rerank search`."""

    query: Annotated[str, typer.Argument(help="The query.")]
    first_stage: options.FirstStageOption = FirstStage.HYBRID_RRF
    depth: options.Depth = 100
    top_n: options.TopN = 10
    feedback: options.Feedback = False
    feedback_method: options.FeedbackMethodOption = FeedbackMethod.WEIGHTED_RANKNET


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings(_RankingSettings):
    """Settings of `rerank rank`."""

    candidates: Annotated[
        Path | None,
        typer.Argument(
            help='JSON lines, plain or gzip: {"doc_id": …, "text": …}, optionally "title", which is put before the '
            'text, and "score", that of the first stage. The id may be called _id, docid or id, be an integer, and '
            "contain spaces. Other fields are ignored. - reads standard input."
        ),
    ] = None
    query: Annotated[str | None, typer.Option(help="The query.")] = None
    id_field: options.IdField = ""
    text_field: options.TextField = ""
    title_field: options.TitleField = ""
    batch: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a query: rank the requests of this file, one per line in RankLLM's form: "
            '{"query": {"qid", "text"}, "candidates": [{"docid", "score", "doc"}]}.'
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --batch: the file for the ranked requests, in the same form and order. If it has some of them "
            "already, as after a kill, the run goes on behind them."
        ),
    ] = None
    top_n: options.TopN = 0
    ordered: options.Ordered = True
    first_stage_kind: options.FirstStageKindOption = None

    def fields(self) -> dict[str, Any]:
        """The fields of the request that these settings fill."""
        return {**_RankingSettings.fields(self), "first_stage_kind": self.first_stage_kind}

    @property
    def field_names(self) -> tuple[str, str, str]:
        """The names of the fields with id, text and title; empty for the usual ones."""
        return self.id_field, self.text_field, self.title_field


def search(settings: SearchSettings) -> None:
    """Retrieve candidates from a service's index and rerank them."""
    with _client(settings.target, settings.tls_ca) as client:
        response = client.search(
            settings.query,
            settings.timeout_s,
            first_stage=settings.first_stage,
            depth=settings.depth,
            top_n=settings.top_n,
            feedback=settings.feedback_method if settings.feedback else None,
            **settings.fields(),
        )
    title = f"{settings.query}   [{response.first_stage_hits} candidates from {settings.first_stage}]"
    _show(response, title, settings)


def rank(settings: RankSettings) -> None:
    """Rerank candidates in a file, or a file of requests (--batch)."""
    if settings.batch and any(settings.field_names):
        raise typer.BadParameter("a file of --batch has RankLLM's fields; leave out --id-field and the like")
    if settings.batch and settings.out and not (settings.query or settings.candidates):
        _rank_batch(settings, settings.batch, settings.out)
        return
    if settings.query is None or settings.candidates is None or settings.batch or settings.out:
        raise typer.BadParameter("give --query and a file of candidates, or --batch and --out")
    candidates = read_candidates(settings.candidates, FIELDS.renamed(*settings.field_names))
    with _client(settings.target, settings.tls_ca) as client:
        response = client.rerank(
            settings.query,
            candidates,
            settings.timeout_s,
            top_n=settings.top_n,
            ordered=settings.ordered,
            **settings.fields(),
        )
    _show(response, settings.query, settings)


def _rank_batch(settings: RankSettings, requests: Path, out: Path) -> None:
    from rerank.commands.rank_file import rank_file

    fields = settings.fields() | {"return_passages": False, "top_n": settings.top_n, "ordered": settings.ordered}
    with _client(settings.target, settings.tls_ca) as client:
        answers = partial(client.rerank_many, timeout_s=settings.timeout_s, **fields)
        if failed := rank_file(requests, out, answers):
            console.print(f'{failed} requests failed; their lines in {out} have an "error"')
            raise typer.Exit(1)


def models(
    target: options.Target = DEFAULT_TARGET,
    tls_ca: options.TLSCA = None,
    timeout_s: options.TimeoutS = 60.0,
    as_json: options.Json = False,
) -> None:
    """List the models and the index of a running service."""
    with _client(target, tls_ca) as client:
        response = client.list_models(timeout_s)
    if as_json:
        _print_json(response)
        return
    console.print(models_table(response))
    console.print("* answers requests that name no model")
    if response.HasField("index"):
        index = response.index
        console.print(f"index: {index.passages:,} passages of {index.collection}, vectors of {index.encoder}")
    else:
        console.print("index: none; `rerank search` needs one: `rerank serve --index FOLDER`")


def health(
    target: options.Target = DEFAULT_TARGET,
    model: Annotated[str, typer.Option(help="Ask for this model; empty: for the default model.")] = "",
    liveness: Annotated[
        bool, options.flag("--liveness", "Ask whether the process answers, whatever its models, also during a drain.")
    ] = False,
    tls_ca: options.TLSCA = None,
    timeout_s: options.TimeoutS = 5.0,
) -> None:
    """Ask a running service whether it is ready.

    Prints SERVING and exits with 0, or prints NOT_SERVING and exits with 1; without an answer exits with 2.
    """
    from rerank.access.credentials import Credentials
    from rerank.client.health_check import check_health

    status = check_health(target, Credentials.from_environment(tls_ca), timeout_s, model, liveness)
    console.print(status)
    if status != "SERVING":
        raise typer.Exit(1)


def _client(target: str, tls_ca: str | None) -> RerankClient:
    from rerank.access.credentials import Credentials
    from rerank.client.client import RerankClient
    from rerank.client.retries import DEFAULT_ATTEMPTS

    return RerankClient(target, Credentials.from_environment(tls_ca), DEFAULT_ATTEMPTS)


def _show(response: pb.RerankResponse | pb.SearchResponse, title: str, settings: _RankingSettings) -> None:
    from rerank.v1 import rerank_pb2 as pb

    if settings.as_json:
        _print_json(response)
        return
    console.print(results_table(title, response, settings.verbose))
    feedback = response.feedback if isinstance(response, pb.SearchResponse) and response.HasField("feedback") else None
    if not settings.verbose:
        console.print(execution_line(response.execution))
        if feedback:
            console.print(feedback_line(feedback))
        return
    console.print(fields_table("execution", response.execution))
    if feedback:
        console.print(fields_table("feedback", feedback))


def _print_json(message: Message) -> None:
    from google.protobuf.json_format import MessageToJson

    print(MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
