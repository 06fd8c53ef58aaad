"""`rerank search`, `rerank rank`, `rerank models` and `rerank health`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank.commands import options
from rerank.commands.display import execution_line, feedback_line, fields_table, models_table, results_table
from rerank.commands.rank_texts import EXAMPLE_PASSAGES, EXAMPLE_QUERY, file_among, rank_here
from rerank.commands.run import console
from rerank.readers.candidates import FIELDS, read_candidates
from rerank.types import CandidateLike, FeedbackMethod, FirstStage

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rerank.client.client import RerankClient
    from rerank.v1 import rerank_pb2 as pb

DEFAULT_TARGET = "127.0.0.1:50051"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankingSettings:
    """Settings that `search` and `rank` share."""

    model: options.ModelName = ""
    strategy: options.StrategyOption = None
    window_size: options.WindowSize = 0
    stride: options.Stride = 0
    early_stop: options.EarlyStop = False
    preranker: options.Preranker = ""
    interpolation: options.Interpolation = None
    instruction: options.Instruction = ""
    min_relevance: options.MinRelevance = None
    diversity: options.Diversity = 0.0
    near_duplicates: options.NearDuplicatesOption = None
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
            "diversity": self.diversity,
            "near_duplicates": self.near_duplicates,
            "max_chunks_per_doc": self.max_chunks_per_doc,
            "allow_partial": self.allow_partial,
            "on_failure": self.on_failure,
            "return_passages": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings(_RankingSettings):
    """Settings of `rerank search`."""

    query: Annotated[str, typer.Argument(help="The query.")]
    target: options.Target = DEFAULT_TARGET
    first_stage: options.FirstStageOption = FirstStage.HYBRID_RRF
    depth: options.Depth = 100
    top_n: options.TopN = 10
    feedback: options.Feedback = False
    feedback_method: options.FeedbackMethodOption = FeedbackMethod.WEIGHTED_RANKNET


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings(_RankingSettings):
    """Settings of `rerank rank`."""

    candidates: Annotated[
        list[str],
        typer.Argument(
            metavar="PASSAGES",
            help="Passages as texts in quotes, which are ranked in this process. Or a file for a running service: JSON "
            'lines, plain or gzip, {"doc_id": …, "text": …}, optionally "title", which is put before the text, and '
            '"score", that of the first stage. The id may be called _id, docid or id, be an integer, and contain '
            "spaces. Other fields are ignored. - reads standard input.",
        ),
    ] = field(default_factory=list)
    query: Annotated[str | None, typer.Option(help="The query.")] = None
    example: Annotated[bool, options.flag("--example", "Rank an example with its own query and passages.")] = False
    target: Annotated[
        str | None,
        typer.Option(
            help=f"HOST:PORT of a running service. Default: {DEFAULT_TARGET} for a file; texts need no service."
        ),
    ] = None
    model: Annotated[
        str,
        typer.Option(
            help="Name of a model of the service; for texts: a bundled model or the folder of a checkpoint. Empty: the "
            "default model."
        ),
    ] = ""
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
    ordered: options.Ordered = None
    first_stage_kind: options.FirstStageKindOption = None

    def fields(self) -> dict[str, Any]:
        """The fields of the request that these settings fill."""
        return {
            **_RankingSettings.fields(self),
            "first_stage_kind": self.first_stage_kind,
            "top_n": self.top_n,
            "ordered": self.ordered,
        }

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
    """Rank passages, a file of candidates, or a file of requests (--batch).

    Passages of the command line need no service: the model is loaded for them. Their order has no effect.
    """
    if settings.batch and any(settings.field_names):
        raise typer.BadParameter("a file of --batch has RankLLM's fields; leave out --id-field and the like")
    is_single = bool(settings.query or settings.candidates or settings.example)
    if settings.batch and settings.out and not is_single:
        _rank_batch(settings, settings.batch, settings.out)
        return
    if settings.batch or settings.out:
        raise typer.BadParameter("give --query with passages or a file of candidates, or --batch and --out")
    if settings.example:
        if settings.query is not None or settings.candidates:
            raise typer.BadParameter("--example has a query and passages of its own; leave yours out")
        _rank_texts(settings, EXAMPLE_QUERY, EXAMPLE_PASSAGES)
        return
    if settings.query is None:
        raise typer.BadParameter('give --query "…", or --example')
    if file := file_among(settings.candidates):
        candidates = read_candidates(file, FIELDS.renamed(*settings.field_names))
        _show(_ask(settings, settings.query, candidates), settings.query, settings)
        return
    if any(settings.field_names):
        raise typer.BadParameter("passages as texts have no fields; leave out --id-field and the like")
    _rank_texts(settings, settings.query, settings.candidates)


def _ask(settings: RankSettings, query: str, candidates: Sequence[CandidateLike]) -> pb.RerankResponse:
    """The response of the service."""
    with _client(settings.target or DEFAULT_TARGET, settings.tls_ca) as client:
        return client.rerank(query, candidates, settings.timeout_s, **settings.fields())


def _rank_texts(settings: RankSettings, query: str, texts: Sequence[str]) -> None:
    """Ranks texts by the service at --target, or else in this process; their ids count from 1."""
    passages = [(str(number), text) for number, text in enumerate(texts, start=1)]
    unordered = replace(settings, ordered=bool(settings.ordered))
    if settings.target:
        _show(_ask(unordered, query, passages), query, settings)
        return
    response, load_s, rank_s = rank_here(query, passages, settings.model, unordered.fields())
    if settings.as_json or settings.verbose:
        _show(response, query, settings)
    else:
        console.print(results_table(query, response))
    if not settings.as_json:
        took = f"ranked in {rank_s * 1000:,.0f} ms, after the model was loaded in {load_s:,.1f} s"
        console.print(f"{response.execution.model}: {took}; `rerank serve` loads it once")


def _rank_batch(settings: RankSettings, requests: Path, out: Path) -> None:
    from rerank.commands.rank_file import rank_file

    fields = settings.fields() | {"return_passages": False}
    with _client(settings.target or DEFAULT_TARGET, settings.tls_ca) as client:
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
