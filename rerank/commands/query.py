"""`rerank search`, `rerank rank` and `rerank models`: calls of a running service."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank.commands import options
from rerank.commands.display import execution_line, feedback_line, fields_table, models_table, results_table, snippet
from rerank.commands.run import console
from rerank.errors import InvalidRequest
from rerank.types import CandidateSource, FeedbackMethod, FirstStage, candidate_source

if TYPE_CHECKING:
    from google.protobuf.message import Message

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
    timeout_s: options.TimeoutS = 60.0
    tls_ca: options.TLSCA = None
    allow_partial: options.AllowPartial = False
    verbose: options.Verbose = False
    as_json: options.Json = False

    def fields(self) -> dict[str, Any]:
        """The fields of the request that these settings fill."""
        from rerank.commands.messages import strategy_message

        return {
            "model": self.model,
            "strategy": strategy_message(
                self.strategy, self.window_size, self.stride, self.early_stop, self.preranker, self.interpolation
            ),
            "instruction": self.instruction,
            "allow_partial": self.allow_partial,
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
        Path, typer.Argument(help='JSON lines of {"doc_id": …, "text": …, "score": optional}; - reads standard input.')
    ]
    query: Annotated[str, typer.Option(help="The query.")]
    top_n: options.TopN = 0


def search(settings: SearchSettings) -> None:
    """Retrieve candidates from the index of a running service and rerank them."""
    from rerank.commands.messages import feedback_message
    from rerank.service.client import RerankClient
    from rerank.service.credentials import Credentials

    with RerankClient(settings.target, Credentials.from_environment(settings.tls_ca)) as client:
        response = client.search(
            settings.query,
            settings.timeout_s,
            first_stage=f"FIRST_STAGE_{settings.first_stage.name}",
            depth=settings.depth,
            top_n=settings.top_n,
            feedback=feedback_message(settings.feedback_method) if settings.feedback else None,
            **settings.fields(),
        )
    title = f"{settings.query}   [{response.first_stage_hits} candidates from {settings.first_stage}]"
    _show(response, title, settings)


def rank(settings: RankSettings) -> None:
    """Rerank the candidates in a file with a running service."""
    from rerank.service.client import RerankClient
    from rerank.service.credentials import Credentials

    candidates = _read_candidates(settings.candidates)
    with RerankClient(settings.target, Credentials.from_environment(settings.tls_ca)) as client:
        response = client.rerank(
            settings.query, candidates, settings.timeout_s, top_n=settings.top_n, **settings.fields()
        )
    _show(response, settings.query, settings)


def models(
    target: options.Target = DEFAULT_TARGET,
    tls_ca: options.TLSCA = None,
    timeout_s: options.TimeoutS = 60.0,
    as_json: options.Json = False,
) -> None:
    """List the models and the index of a running service."""
    from rerank.service.client import RerankClient
    from rerank.service.credentials import Credentials

    with RerankClient(target, Credentials.from_environment(tls_ca)) as client:
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


def _read_candidates(path: Path) -> list[CandidateSource]:
    """Raises: InvalidRequest when the file or a line of it cannot be read; the message names the line."""
    try:
        lines = sys.stdin.readlines() if str(path) == "-" else path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("candidates", f"{path} cannot be read: {error}") from error
    candidates: list[CandidateSource] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            candidate = _read_candidate(line, f"{path}:{number}")
            if (first := line_of.setdefault(candidate.doc_id, number)) != number:
                raise InvalidRequest(
                    "candidates", f"{path}:{number}: doc_id {candidate.doc_id!r} is on line {first} already"
                )
            candidates.append(candidate)
    return candidates


def _read_candidate(line: str, place: str) -> CandidateSource:
    try:
        row: Any = json.loads(line)
        row["text"].encode("utf-8")  # JSON can hold half of a surrogate pair, which UTF-8 cannot
        return candidate_source({key: row[key] for key in ("doc_id", "text", "score") if key in row}, 0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            "candidates",
            f'{place}: expected {{"doc_id": …, "text": …}} with two strings and, optionally, a number as "score"; '
            f"found {snippet(line)}",
        ) from error


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
