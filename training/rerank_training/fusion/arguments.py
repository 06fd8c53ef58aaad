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
    """Arguments of `train-fusion`: the source of the judged lists, and settings of the service.

    Raises:
        ConfigError: a number is out of range.
    """

    out: Annotated[Path, "Settings of a service with these weights, a YAML file to write; it must not exist yet."]
    lists: Annotated[Path | None, "Judged lists: requests with --qrels, or the lists of build-lists."] = None
    qrels: Annotated[Path | None, "Judgements, a file in TREC or BEIR format."] = None
    index: Annotated[Path | None, "Index folder from `rerank index`, which is searched for each judged query."] = None
    first_stage: Annotated[FirstStage, "With --index: the first stage of the searches."] = DEFAULT_FIRST_STAGE
    depth: Annotated[int, typer.Option(min=2, max=1000, help="With --index: number of candidates of a search.")] = 100
    queries: Annotated[
        Path | None, "With --index: lines of query_id, tab, text, or BEIR's queries.jsonl or its folder."
    ] = None
    collection: Annotated[
        str, "Source of queries and judgements: pydoc, or a folder in BEIR layout, of which qrels/test.tsv is read."
    ] = ""
    first_stage_weight: Annotated[str, "The service's first_stage_weight: auto, neural or a number."] = "auto"
    cosine_depth: Annotated[
        int,
        typer.Option(
            min=0,
            help="The service's cosine_depth: the number of best passages whose cosine is computed; 0: all passages. "
            "With --index it is always 0.",
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
        """`first_stage_weight` as a kind or a number. Raises: InvalidRequest if it is neither."""
        return first_stage_weight(self.first_stage_weight)

    @property
    def depth_of_cosines(self) -> int:
        """The service's cosine_depth; 0 (all passages) with an index, because it has the vectors."""
        return 0 if self.index else self.cosine_depth
