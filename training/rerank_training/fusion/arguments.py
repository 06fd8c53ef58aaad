"""Arguments of `train-fusion`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rerank.errors import ConfigError
from rerank.names import DEFAULT_FIRST_STAGE, first_stage_weight
from rerank.types import FirstStage, FirstStageWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionArguments:
    """Arguments: where the judged lists come from, and settings of the service whose weights are chosen.

    Raises:
        ConfigError: a number is out of range.
    """

    out: Annotated[Path, "Settings of a service with these weights, a YAML file to write; it must not exist yet."]
    lists: Annotated[Path | None, "Judged lists: requests with --qrels, or the lists of build-lists."] = None
    qrels: Annotated[Path | None, "Judgements, in the form of TREC or BEIR."] = None
    index: Annotated[Path | None, "Index folder from `rerank index`, which is searched for each judged query."] = None
    first_stage: Annotated[FirstStage, "With --index: the first stage of the searches."] = DEFAULT_FIRST_STAGE
    depth: Annotated[int, typer.Option(min=2, max=1000, help="With --index: number of candidates of a search.")] = 100
    queries: Annotated[
        Path | None, "With --index: lines of query_id, tab, text, or BEIR's queries.jsonl or its folder."
    ] = None
    collection: Annotated[
        str, "pydoc, or a folder in BEIR layout, with the queries and the judgements of its part test."
    ] = ""
    first_stage_weight: Annotated[str, "The service's first_stage_weight: auto, neural or a number."] = "auto"
    cosine_depth: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of best passages of a list whose cosine the service reads, as in the settings of the fusion; "
            "0: all passages, as with --index.",
        ),
    ] = 30
    encoder: Annotated[str, "Encoder of the passages, a folder or a name on the hub; empty: all-MiniLM-L6-v2."] = ""
    sparse_encoder: Annotated[str, "Folder of a learned sparse encoder; empty: splade-tiny."] = ""
    seed: Annotated[int, "Seed of the parts of the cross-validation, and of the permutations."] = 42

    def __post_init__(self) -> None:
        if self.cosine_depth == 1:
            raise ConfigError("--cosine-depth 1 ranks nothing; use 2 or more, or 0 for all passages")

    @property
    def default_weight(self) -> FirstStageWeight:
        """The service's weight of the first stage before the training. Raises: InvalidRequest for another word."""
        return first_stage_weight(self.first_stage_weight)

    @property
    def depth_of_cosines(self) -> int:
        """The number of passages whose cosine the service reads; 0: all, as an index has their vectors."""
        return 0 if self.index else self.cosine_depth
