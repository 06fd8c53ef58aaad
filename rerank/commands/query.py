"""`rerank search`, `rerank models` and `rerank health`, which call a running service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rerank.commands import options
from rerank.commands.display import (
    execution_line,
    feedback_line,
    fields_table,
    models_table,
    results_table,
    warnings_of,
)
from rerank.commands.run import console
from rerank.names import DEFAULT_FIRST_STAGE, FeedbackMethod

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rerank.client.client import RerankClient
    from rerank.v1 import rerank_pb2 as pb

DEFAULT_TARGET = "127.0.0.1:50051"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings(options.RankingSettings):
    """Settings of `rerank search`."""

    query: Annotated[str, typer.Argument(help="The query.")]
    target: options.Target = DEFAULT_TARGET
    first_stage: options.FirstStageOption = DEFAULT_FIRST_STAGE
    depth: Annotated[int, "Number of candidates that the first stage retrieves."] = 100
    top_n: options.TopN = 10
    feedback: Annotated[
        FeedbackMethod | None,
        options.choice(
            FeedbackMethod,
            "Relevance feedback: update the query vector with the ranking in this way, retrieve again, and rank the "
            "union.",
        ),
    ] = None


def search(settings: SearchSettings) -> None:
    """Retrieve candidates from a service's index and rerank them."""
    query = options.as_utf8(settings.query)
    with open_client(settings.target, settings.tls_ca) as client:
        response = client.search(
            query,
            settings.call_timeout_s,
            first_stage=settings.first_stage,
            depth=settings.depth,
            top_n=settings.top_n,
            feedback=settings.feedback,
            **settings.fields(),
        )
    if not (response.first_stage_hits or settings.as_json):
        way_out = "" if settings.first_stage.reads_vectors else "; dense and hybrid search read meanings"
        words = "has a word of the query" if way_out else "is in the index"
        console.note(f"{settings.first_stage} found nothing: no passage {words}{way_out}")
        return
    title = f"{query}   [{response.first_stage_hits} candidates from {settings.first_stage}]"
    show_response(response, title, settings)


def models(
    target: options.Target = DEFAULT_TARGET,
    tls_ca: options.TLSCA = None,
    timeout_s: options.TimeoutS = 60.0,
    as_json: options.Json = False,
) -> None:
    """List the models and the index of a running service."""
    with open_client(target, tls_ca) as client:
        response = client.list_models(timeout_s)
    if as_json:
        _print_json(response)
        return
    console.print(models_table(response, console.is_narrow))
    for model in response.models:
        if note := model.problem or model.warning:
            console.note(f"{model.name}: {note}")
    console.note("* answers requests that do not name a model")
    if response.HasField("index"):
        index = response.index
        console.note(f"index: {index.passages:,} passages of {index.collection}, vectors of {index.encoder}")
    else:
        console.note("index: none; `rerank search` needs one: `rerank serve --index FOLDER`")


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

    Prints SERVING and exits with 0, or prints NOT_SERVING and exits with 1. Without an answer it exits with 3.
    """
    from rerank.access.credentials import Credentials
    from rerank.client.client import check_health

    status = check_health(target, Credentials.from_environment(tls_ca), timeout_s, model, liveness)
    console.print(status)
    if status != "SERVING":
        raise typer.Exit(1)


def open_client(target: str, tls_ca: str | None) -> RerankClient:
    from rerank.access.credentials import Credentials
    from rerank.client.client import RerankClient
    from rerank.client.retries import DEFAULT_ATTEMPTS

    return RerankClient(target, Credentials.from_environment(tls_ca), DEFAULT_ATTEMPTS)


def show_response(response: pb.RerankResponse, title: str, settings: options.RankingSettings, took: str = "") -> None:
    """Prints a reply: JSON, or the table of results, the warnings, and the cost.

    Args:
        took: the line on the cost of a ranking in this process, instead of `execution_line`.
    """
    if settings.as_json:
        _print_json(response)
        return
    if response.results:
        console.print(results_table(title, response, settings.verbose, console.is_narrow))
    for warning in warnings_of(response.execution):
        console.note(warning)
    feedback = response.feedback if response.HasField("feedback") else None
    if not settings.verbose:
        console.note(took or execution_line(response.execution))
        if feedback:
            console.note(feedback_line(feedback))
        return
    console.print(fields_table("execution", response.execution))
    if feedback:
        console.print(fields_table("feedback", feedback))
    if took:
        console.note(took)


def _print_json(message: Message) -> None:
    from google.protobuf.json_format import MessageToJson

    print(MessageToJson(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
