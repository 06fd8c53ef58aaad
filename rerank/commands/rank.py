"""`rerank rank`: ranks passages of the command line or of a file, in this process or by a running service."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank.commands import options
from rerank.commands.example import EXAMPLE_PASSAGES, EXAMPLE_QUERY
from rerank.commands.query import DEFAULT_TARGET, open_client, show_response
from rerank.commands.run import console
from rerank.readers.candidates import read_candidates
from rerank.readers.rows import STDIN
from rerank.types import CandidateLike
from rerank.util.files import missing_path_hint

if TYPE_CHECKING:
    from rerank.v1 import rerank_pb2 as pb

#: An argument of one word that ends like this is the name of a file, not a passage.
_FILE_ENDS = (".csv", ".gz", ".json", ".jsonl", ".tsv", ".txt")
#: An argument of one word that starts like this is the path of a file, not a passage.
_PATH_STARTS = ("/", "./", "../", "~/")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings(options.RankingSettings):
    """Settings of `rerank rank`."""

    candidates: Annotated[
        list[str],
        typer.Argument(
            metavar="PASSAGES",
            help="Passages as texts in quotes, or a file of them: JSON "
            'lines, plain or gzip, {"doc_id": …, "text": …}, optionally "title", which is put before the text, and '
            '"score", of the first stage. The id may be called _id, docid or id, be an integer, and contain '
            "spaces. Other fields are ignored. - reads standard input.",
        ),
    ] = field(default_factory=list)
    query: Annotated[str | None, "The query."] = None
    example: Annotated[bool, options.flag("--example", "Rank an example query and its passages.")] = False
    target: Annotated[
        str | None,
        "HOST:PORT of a running service. Default: none, the model is loaded in this process; with --batch "
        f"{DEFAULT_TARGET}. {options.KEY_HELP}",
    ] = None
    model: Annotated[
        str,
        "With a service: the name of one of its models. In this process: a bundled model, a name on the Hugging Face "
        "hub, PATH, PROFILE:PATH or RANKER:PATH of a checkpoint, or NAME= and one of these, as `rerank serve` takes "
        "it. Empty: the default model.",
    ] = ""
    encoder: options.Encoder = None
    batch: Annotated[
        Path | None,
        "Instead of a query: rank the requests of this file, one per line in RankLLM's form: "
        '{"query": {"qid", "text"}, "candidates": [{"docid", "score", "doc"}]}.',
    ] = None
    out: Annotated[
        Path | None,
        "With --batch: the file for the ranked requests, in the same form and order. The same command goes on "
        "after a kill, and sends failed requests again.",
    ] = None
    top_n: options.TopN = 0
    ordered: Annotated[
        bool | None,
        typer.Option(
            "--ordered/--unordered",
            help="Whether the candidates are in the order of a first stage, best first; default: in a file they are. "
            "--unordered: their order has no effect on the result, and equal texts get equal scores.",
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """The fields of the request that these settings fill."""
        return {**options.RankingSettings.fields(self), "top_n": self.top_n, "ordered": self.ordered}


def rank(settings: RankSettings) -> None:
    """Rank passages, or a file of candidates or requests.

    The order of passages on the command line has no effect; the order in a file has, unless you say --unordered.
    """
    is_single = bool(settings.query or settings.candidates or settings.example)
    if settings.encoder and (settings.target or settings.batch):
        raise typer.BadParameter("--encoder is for a model in this process; the service at --target has its own")
    if settings.batch and settings.out and not is_single:
        _rank_batch(settings, settings.batch, settings.out)
        return
    if settings.batch or settings.out:
        raise typer.BadParameter("give --query with passages or a file of candidates, or --batch and --out")
    if settings.example:
        if settings.query is not None or settings.candidates:
            raise typer.BadParameter("--example brings a query and passages; leave yours out")
        _rank(_as_texts(settings), EXAMPLE_QUERY, _numbered(EXAMPLE_PASSAGES))
        return
    if settings.query is None:
        raise typer.BadParameter('give --query "…", or --example')
    query = options.as_utf8(settings.query)
    if file := candidates_file(settings.candidates):
        _rank(settings, query, read_candidates(file))
    else:
        _rank(_as_texts(settings), query, _numbered(map(options.as_utf8, settings.candidates)))


def _as_texts(settings: RankSettings) -> RankSettings:
    """The settings for passages on the command line, which are unordered unless --ordered is given."""
    return replace(settings, ordered=bool(settings.ordered))


def _numbered(texts: Iterable[str]) -> list[CandidateLike]:
    """Texts with ids that count from 1."""
    return [(str(number), text) for number, text in enumerate(texts, start=1)]


def _rank(settings: RankSettings, query: str, candidates: Sequence[CandidateLike]) -> None:
    """Ranks candidates by the service at --target, or else in this process."""
    if settings.target:
        with open_client(settings.target, settings.tls_ca) as client:
            response = client.rerank(query, candidates, settings.call_timeout_s, **settings.fields())
        show_response(response, query, settings)
        return
    response, load_s, rank_s = rank_in_process(
        query, candidates, settings.model, settings.fields(), settings.timeout_s, settings.encoder
    )
    took = f"ranked in {rank_s * 1000:,.0f} ms, after the model was loaded in {load_s:,.1f} s"
    show_response(response, query, settings, f"{response.execution.model}: {took}; `rerank serve` loads it once")


def _rank_batch(settings: RankSettings, requests: Path, out: Path) -> None:
    from rerank.client.client import list_loaded_models
    from rerank.commands.rank_file import RankedFile, ranking_settings

    fields = settings.fields() | {"return_passages": False}
    with open_client(settings.target or DEFAULT_TARGET, settings.tls_ca) as client:
        names = (settings.model, fields["strategy"]["preranker"] or "")
        models = list_loaded_models(client, names, settings.call_timeout_s).models
        ranked = RankedFile(requests, out, ranking_settings(fields, models))
        counts = ranked.rank(partial(client.rerank_many, timeout_s=settings.call_timeout_s, **fields))
    before = f", {counts.before:,} of them before" if counts.before else ""
    console.note(f"{out}: {counts.total - counts.failed:,} of {counts.total:,} requests are ranked{before}")
    for warning in counts.warnings:
        console.note(warning)
    if counts.failed:
        problem = f"failed requests: {counts.failed}; the same command sends them again"
        console.print(f'{problem}. Their lines have an "error"')
        raise typer.Exit(1)


def candidates_file(given: Sequence[str]) -> Path | None:
    """The file of candidates, if the arguments name one; None for passages.

    Raises:
        typer.BadParameter: there is no argument; or one is a folder, a file among others, or a file that does not
            exist.
    """
    if not given:
        raise typer.BadParameter("give passages as texts, a file of candidates (- for standard input), or --example")
    files = [value for value in given if value == str(STDIN) or os.path.exists(value)]
    if folder := next((file for file in files if os.path.isdir(file)), ""):
        raise typer.BadParameter(f"{folder} is a folder; give a file of candidates, or passages as texts in quotes")
    if files and len(given) > 1:
        raise typer.BadParameter(f"{files[0]} is a file; give it alone, or give passages as texts in quotes")
    for value in given:
        if not files and _looks_like_a_file(value):
            problem = f"{value!r} looks like a file, and there is no file of this name{missing_path_hint(Path(value))}"
            raise typer.BadParameter(f"{problem}; a passage is a text in quotes")
    return Path(files[0]) if files else None


def _looks_like_a_file(text: str) -> bool:
    return len(text.split()) == 1 and (text.lower().endswith(_FILE_ENDS) or text.startswith(_PATH_STARTS))


def rank_in_process(
    query: str,
    candidates: Sequence[CandidateLike],
    model: str,
    fields: Mapping[str, Any],
    timeout_s: float | None = None,
    encoder: str | None = None,
) -> tuple[pb.RerankResponse, float, float]:
    """Loads a model and ranks candidates; returns the reply, and the seconds to load and to rank.

    Args:
        model: see `config_of_model`; empty: the default model.
        fields: further fields of RerankRequest.
        timeout_s: deadline of the ranking in seconds, without the time to load the model; None: no deadline.
        encoder: name, folder or settings of the encoder; None: the default one.

    Raises:
        ConfigError, CheckpointError: the model cannot be loaded.
        InvalidRequest: a field cannot have its value.
    """
    start_s = time.perf_counter()
    from rerank.client.client import rerank_request
    from rerank.config import EncoderConfig
    from rerank.config.named import config_of_model
    from rerank.protobuf import messages

    config = config_of_model(model or "default")
    if encoder is not None:
        config = config.model_copy(update={"encoder": EncoderConfig.of(encoder)})
    message = rerank_request(query, candidates, {**fields, "model": config.models[0].name})
    request = messages.rerank_request(message).checked(config.limits)  # before the model is loaded
    from rerank.reranking.blocking import Reranker  # imports torch

    with Reranker(config) as reranker:
        loaded_s = time.perf_counter()
        ranking = reranker.rerank(request.query, request.candidates, request.options, timeout_s)
        end_s = time.perf_counter()
    return messages.rerank_response(ranking, message), loaded_s - start_s, end_s - loaded_s
