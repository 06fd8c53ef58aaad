"""Settings of `rerank tune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.options import FirstStageOption
from rerank.errors import ConfigError
from rerank.types import FirstStage


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """Settings of `rerank tune`."""

    index: Annotated[
        Path | None, typer.Option(help="Index folder from `rerank index`, which is searched for each query.")
    ] = None
    requests: Annotated[
        Path | None,
        typer.Option(
            help='Lists of your own first stage instead of --index: {"query": {"qid", "text"}, "candidates": '
            '[{"docid", "score", "doc": {"text"}}]} per line, best first.'
        ),
    ] = None
    collection: Annotated[
        str,
        typer.Option(
            help="pydoc, or a folder in BEIR layout, whose queries and judgements are used instead of the next three."
        ),
    ] = ""
    queries: Annotated[
        Path | None, typer.Option(help="Your queries: lines of query_id, tab, text, or BEIR's queries.jsonl.")
    ] = None
    qrels: Annotated[Path | None, typer.Option(help="Their judgements, in the form of TREC or BEIR.")] = None
    clicks: Annotated[
        Path | None,
        typer.Option(
            help="Clicks instead of judgements: lines of query, doc_id, clicks and optionally impressions, with tabs "
            "between. The query is its text, or with --queries or --requests its query_id."
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file of your service: its models are tried, too, and its settings are kept."),
    ] = None
    model: Annotated[
        list[str],
        typer.Option(help="NAME=PATH or NAME=PROFILE:PATH of a further model to try, as for `rerank serve`."),
    ] = field(default_factory=list)
    only: Annotated[
        list[str], typer.Option(help="Name of a model to try; repeatable. Default: yours and the bundled ones.")
    ] = field(default_factory=list)
    first_stage: FirstStageOption = FirstStage.HYBRID_RRF
    depth: Annotated[int, typer.Option(min=2, max=1000, help="Number of candidates of the first stage.")] = 100
    rerank_depths: Annotated[
        str, typer.Option(help="Numbers of best candidates that models which read texts may rerank.")
    ] = "10,20"
    folds: Annotated[int, typer.Option(min=2, max=1000, help="Number of parts of the cross-validation.")] = 10
    seed: Annotated[int, typer.Option(min=0, help="Seed of the division of the queries into these parts.")] = 0
    out: Annotated[Path, typer.Option(help="Folder for service.yaml and the report; a killed run goes on in it.")] = (
        Path("tuned")
    )

    @property
    def reranked(self) -> list[int]:
        """The numbers of --rerank-depths, ascending. Raises: ConfigError when they are no numbers from 2 to --depth."""
        parts = [part.strip() for part in self.rerank_depths.split(",")]
        if not all(part.isdecimal() and len(part) < 5 and 2 <= int(part) <= self.depth for part in parts):
            raise ConfigError(
                f"--rerank-depths {self.rerank_depths}: expected numbers from 2 to {self.depth}, as 10,20"
            )
        return sorted({int(part) for part in parts})
