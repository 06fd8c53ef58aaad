"""Command-line options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from rerank.errors import InvalidRequest
from rerank.names import FeedbackMethod, FirstStage, FirstStageKind, Name, OnFailure, StrategyKind, first_stage_weight

N = TypeVar("N", bound=Name)
T = TypeVar("T")


def _parser(names: type[N]) -> Callable[[str], N]:
    """A parser that accepts each name with hyphens and with underscores."""
    return _checked(partial(names.of, ""))


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser whose InvalidRequest is the error of the flag."""

    def parsed(value: str) -> T:
        try:
            return parse(value)
        except InvalidRequest as error:
            raise typer.BadParameter(error.description) from error

    return parsed


def as_utf8(argument: str) -> str:
    """A text of the command line, as UTF-8 where the locale, such as C, cannot read it."""
    try:
        argument.encode()
    except UnicodeEncodeError:  # Python keeps bytes that it cannot read as halves of surrogate pairs
        return os.fsencode(argument).decode(errors="surrogateescape")
    return argument


def _metavar(names: type[Name]) -> str:
    return f"[{'|'.join(names)}]"


def flag(name: str, help_text: str, callback: Callable[[bool], None] | None = None) -> Any:
    """An option without a value. Its help shows no type, which typer would show as <bool>."""
    return typer.Option(name, metavar="", help=help_text, callback=callback, is_eager=callback is not None)


#: Ends the help of every --target.
KEY_HELP = "RERANK_API_KEY is the key, if the service has keys."
Target = Annotated[str, typer.Option(help=f"HOST:PORT of a running service. {KEY_HELP}")]
TLSCA = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        envvar="RERANK_TLS_CA",
        help="PEM file of the authority that signed the service's certificate, or `system` for the public ones; "
        "default: plain text.",
    ),
]
ModelName = Annotated[str, typer.Option("--model", help="Name of a model of the service; empty: its default model.")]
TopN = Annotated[int, typer.Option(help="Number of results to return; 0: all.")]
Depth = Annotated[int, typer.Option(help="Number of candidates that the first stage retrieves.")]
FirstStageOption = Annotated[
    FirstStage,
    typer.Option(
        "--first-stage", parser=_parser(FirstStage), metavar=_metavar(FirstStage), help="The first-stage retriever."
    ),
]
StrategyOption = Annotated[
    StrategyKind | None,
    typer.Option(
        "--strategy",
        parser=_parser(StrategyKind),
        metavar=_metavar(StrategyKind),
        help="How the list is split into windows; default: the model's own strategy.",
    ),
]
WindowSize = Annotated[int, typer.Option(help="Number of passages per window; 0: the model's default.")]
Stride = Annotated[
    int,
    typer.Option(
        help="For sliding: number of passages between the starts of two windows; 0: the model's default, or half a "
        "window."
    ),
]
Preranker = Annotated[str, typer.Option(help="For cascade: the model that orders all candidates first.")]
Instruction = Annotated[
    str, typer.Option(help="Description of relevance, for models that read one; see `rerank models`.")
]
Ordered = Annotated[
    bool | None,
    typer.Option(
        "--ordered/--unordered",
        help="Whether the candidates are in the order of a first stage, best first; default: in a file they are. "
        "--unordered: their order has no effect on the result, and equal texts get equal scores.",
    ),
]
MinRelevance = Annotated[
    float | None,
    typer.Option(
        help="Leave out results with less relevance, 0 to 1, before --top-n counts; for models that give it, see "
        "`rerank models`."
    ),
]
MaxChunksPerDoc = Annotated[
    int,
    typer.Option(
        help="Divide a document that is longer than the model reads into up to this many parts, and rank it by its "
        "best part; 0: read only its beginning."
    ),
]
AllowPartial = Annotated[
    bool, flag("--allow-partial", "At the deadline, return the best order so far instead of an error.")
]
OnFailureOption = Annotated[
    OnFailure | None,
    typer.Option(
        "--on-failure",
        parser=_parser(OnFailure),
        metavar=_metavar(OnFailure),
        help="If ranking fails, return an error, or the best order so far, which begins as the first stage's; default: "
        "error.",
    ),
]
FirstStageWeightOption = Annotated[
    Any,  # FirstStageWeight | None: typer takes no unions
    typer.Option(
        "--first-stage-weight",
        parser=_checked(first_stage_weight),
        metavar=f"NUMBER or {_metavar(FirstStageKind)}",
        help="How much the first stage counts: a number; auto, the model decides; or neural, for a strong neural first "
        "stage. Default: the service's setting; for a search auto.",
    ),
]
TimeoutS = Annotated[float, typer.Option(help="Deadline of the call, in seconds.")]
DefaultTimeoutS = Annotated[
    float | None, typer.Option(help="Deadline in seconds; default: 60 for a service, none without one.")
]
FeedbackOption = Annotated[
    FeedbackMethod | None,
    typer.Option(
        "--feedback",
        parser=_parser(FeedbackMethod),
        metavar=_metavar(FeedbackMethod),
        help="Relevance feedback: update the query vector with the ranking in this way, retrieve again, and rank the "
        "union.",
    ),
]
Verbose = Annotated[bool, flag("--verbose", "Print every field of what ran, and the scores of the first stage.")]
Json = Annotated[bool, flag("--json", "Print the response as JSON, for programs.")]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="Name or folder of the encoder, or its settings, as in '{name: DIR, query_prompt: \"query: \"}'; default: "
        "all-MiniLM-L6-v2."
    ),
]
