"""Command-line options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import typer

from rerank.errors import InvalidRequest
from rerank.names import FirstStage, FirstStageKind, Name, OnFailure, StrategyKind, first_stage_weight

T = TypeVar("T")


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser that turns InvalidRequest into typer's error for the flag."""

    def parsed(value: str) -> T:
        try:
            return parse(value)
        except InvalidRequest as error:
            raise typer.BadParameter(error.description) from error

    return parsed


def choice(names: type[Name], help_text: str) -> Any:
    """An option that takes one of these names, with hyphens or underscores."""
    return typer.Option(parser=_checked(partial(names.of, "")), metavar=_metavar(names), help=help_text)


def as_utf8(argument: str) -> str:
    """A text of the command line; read as UTF-8 if the locale, such as C, cannot decode it."""
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
TopN = Annotated[int, typer.Option(help="Number of results to return; 0: all.")]
FirstStageOption = Annotated[FirstStage, choice(FirstStage, "The first-stage retriever.")]
FirstStageWeightOption = Annotated[
    Any,  # FirstStageWeight | None: typer takes no unions
    typer.Option(
        parser=_checked(first_stage_weight),
        metavar=f"NUMBER or {_metavar(FirstStageKind)}",
        help="Weight of the first stage: a number; auto: the model decides; or neural: the first stage is a strong "
        "neural one. Default: the service's setting; for a search auto.",
    ),
]
TimeoutS = Annotated[float, typer.Option(help="Deadline of the call, in seconds.")]
Json = Annotated[bool, flag("--json", "Print the response as JSON, for programs.")]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="Name or folder of the encoder, or its settings, as in '{name: DIR, query_prompt: \"query: \"}'; default: "
        "all-MiniLM-L6-v2."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSettings:
    """Settings that `search` and `rank` share."""

    model: Annotated[str, "Name of a model of the service; empty: its default model."] = ""
    strategy: Annotated[
        StrategyKind | None,
        choice(StrategyKind, "How the list is split into windows; default: the model's own strategy."),
    ] = None
    window_size: Annotated[int, "Number of passages per window; 0: the model's default."] = 0
    stride: Annotated[
        int,
        "For sliding: number of passages between the starts of two windows; 0: the model's default, or half a window.",
    ] = 0
    preranker: Annotated[str, "For cascade: the model that orders all candidates first."] = ""
    first_stage_weight: FirstStageWeightOption = None
    instruction: Annotated[str, "Description of relevance, for models that read one; see `rerank models`."] = ""
    min_relevance: Annotated[
        float | None,
        "Leave out results with less relevance, 0 to 1, before --top-n counts; for models that give it, see "
        "`rerank models`.",
    ] = None
    timeout_s: Annotated[float | None, "Deadline in seconds; default: 60 with a service, none in this process."] = None
    tls_ca: TLSCA = None
    max_chunks_per_doc: Annotated[
        int,
        "Divide a document that is longer than the model reads into up to this many parts, and rank it by its best "
        "part; 0: read only its beginning.",
    ] = 0
    allow_partial: Annotated[
        bool, flag("--allow-partial", "At the deadline, return the best order so far instead of an error.")
    ] = False
    on_failure: Annotated[
        OnFailure | None,
        choice(
            OnFailure,
            "If ranking fails, return an error, or the best order so far, which may be the first stage's; default: "
            "error.",
        ),
    ] = None
    verbose: Annotated[bool, flag("--verbose", "Print every field of what ran, and the scores of the first stage.")] = (
        False
    )
    as_json: Json = False

    @property
    def call_timeout_s(self) -> float:
        """The deadline of a call to a service, in seconds."""
        return 60.0 if self.timeout_s is None else self.timeout_s

    def fields(self) -> dict[str, Any]:
        """The fields of the request that these settings fill."""
        return {
            "model": self.model,
            "strategy": {
                "kind": self.strategy,
                "window_size": self.window_size,
                "stride": self.stride,
                "preranker": self.preranker,
            },
            "first_stage_weight": self.first_stage_weight,
            "instruction": as_utf8(self.instruction),
            "min_relevance": self.min_relevance,
            "max_chunks_per_doc": self.max_chunks_per_doc,
            "allow_partial": self.allow_partial,
            "on_failure": self.on_failure,
            "return_passages": True,
        }
