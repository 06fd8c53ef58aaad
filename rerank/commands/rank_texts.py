"""`rerank rank --query … "passage one" "passage two"`: ranks texts of the command line in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from rerank.readers.lines import STDIN
from rerank.util.files import looked_for

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb

EXAMPLE_QUERY = "how long does a flea live"
#: The answer shares one word with the query, and others share more.
EXAMPLE_PASSAGES = (
    "How long can people live on a small boat?",
    "The flea market is open all day long.",
    "An adult flea survives a hundred days.",
    "Deserts are dry, and their nights are cold.",
    "Without a host, the insect starves in two weeks.",
    "The moon goes around the earth in a month.",
)

#: A word with one of these ends or starts is the name of a file, and no passage.
_FILE_ENDS, _PATH_STARTS = (".csv", ".gz", ".json", ".jsonl", ".tsv", ".txt"), ("/", "./", "../", "~/")


class RankedTexts(NamedTuple):
    """The response to a request that was ranked in this process, with the seconds of its two parts."""

    response: pb.RerankResponse
    load_s: float
    rank_s: float


def file_among(given: Sequence[str]) -> Path | None:
    """The file of candidates, if that is what was given; None for passages.

    Raises:
        typer.BadParameter: there is nothing, a folder, a file beside something else, or the name of a file that does
            not exist.
    """
    if not given:
        raise typer.BadParameter("give passages as texts, a file of candidates (- for standard input), or --example")
    files = [each for each in given if each == str(STDIN) or os.path.exists(each)]
    if folder := next((each for each in files if os.path.isdir(each)), ""):
        raise typer.BadParameter(f"{folder} is a folder; give a file of candidates, or passages as texts in quotes")
    if files and len(given) > 1:
        raise typer.BadParameter(f"{files[0]} is a file; give it alone, or give passages as texts in quotes")
    for each in given:
        if not files and _looks_like_a_file(each):
            problem = f"{each!r} looks like a file, and there is none of this name{looked_for(Path(each))}"
            raise typer.BadParameter(f"{problem}; a passage is a text in quotes")
    return Path(files[0]) if files else None


def _looks_like_a_file(text: str) -> bool:
    return len(text.split()) == 1 and (text.lower().endswith(_FILE_ENDS) or text.startswith(_PATH_STARTS))


def rank_here(query: str, passages: Sequence[tuple[str, str]], model: str, fields: Mapping[str, Any]) -> RankedTexts:
    """Loads a model and ranks passages, pairs of doc_id and text.

    Args:
        model: see `config_of_model`; empty: the default model.
        fields: further fields of RerankRequest.

    Raises:
        ConfigError, CheckpointError: the model cannot be loaded.
        InvalidRequest: a field cannot have its value.
    """
    start_s = time.perf_counter()
    from rerank.client.client import rerank_request
    from rerank.config.named import config_of_model
    from rerank.protobuf import replies, requests

    config = config_of_model(model or "default")
    message = rerank_request(query, passages, {**fields, "model": config.models[0].name})
    request = requests.rerank_request(message).checked(config.limits)  # before the model is loaded
    from rerank.reranking.blocking import Reranker  # imports torch

    with Reranker(config) as reranker:
        loaded_s = time.perf_counter()
        ranking = reranker.rerank(request.query, request.candidates, request.options)
        end_s = time.perf_counter()
    return RankedTexts(replies.rerank_response(ranking, message), loaded_s - start_s, end_s - loaded_s)
