"""Settings of `build-lists`: one dataclass field per command-line flag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rerank.collections import beir
from rerank.errors import ConfigError
from rerank_training.lists.sampling import ListOrder


class TeacherName(StrEnum):
    """Teachers that assign the relevance of a list's passages; `rerank_training.lists.teachers` implements them."""

    QRELS = "qrels"
    FUSION = "fusion"
    RERANKER = "reranker"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildListsSettings:
    """Settings of `build-lists`: one source, one teacher, and the sampling of the lists.

    Raises:
        ConfigError: options contradict each other, or `passages` cannot be parsed.
    """

    out: Annotated[Path, "JSONL file to write; it must not exist yet."]
    teacher: Annotated[
        TeacherName,
        "Source of the relevance. qrels: the judgements; fusion: first stage and encoder; reranker: the order of one "
        "of rerank's models.",
    ]
    requests: Annotated[Path | None, "Source: RankLLM request JSONL, queries with their candidates."] = None
    collection: Annotated[
        str,
        "Source: pydoc or a folder in BEIR layout. The candidates of a judged query are the passages with the highest "
        "cosine by the encoder.",
    ] = ""
    qrels: Annotated[Path | None, "For --requests: judgements, a file in TREC or BEIR format."] = None
    split: Annotated[str, "For --collection: name of the judgements, as in qrels/SPLIT.tsv."] = "train"
    passages: Annotated[str, "Number of passages in a list: a number, or a range such as 5-20."] = "20"
    depth: Annotated[
        int, typer.Option(min=0, help="Number of best candidates of the first stage that lists are sampled from.")
    ] = 100
    order: Annotated[ListOrder, "Order of the passages in a list."] = ListOrder.FIRST_STAGE
    lists_per_query: Annotated[int, typer.Option(min=1, help="Number of lists sampled for each query.")] = 1
    held_out_share: Annotated[
        float,
        typer.Option(
            min=0, max=0.9, help="Share of the queries whose lists go to a second file, OUT-held-out.jsonl, 0-0.9."
        ),
    ] = 0.0
    seed: Annotated[int, "Seed of all sampling; the same seed gives the same lists."] = 0
    name: Annotated[str, "Prefix of the query_ids; empty: the name of the source's folder."] = ""
    encoder: Annotated[str, "Encoder, a folder or a name on the Hugging Face hub; empty: all-MiniLM-L6-v2."] = ""
    config: Annotated[
        Path | None, "For --teacher reranker: YAML settings of its models. Default: those of `rerank serve`."
    ] = None
    model: Annotated[str, "For --teacher reranker: name of one of the models; empty: the first."] = ""

    def __post_init__(self) -> None:
        if bool(self.requests) == bool(self.collection):
            raise ConfigError("give either --requests or --collection")
        if self.qrels and not self.requests:
            raise ConfigError("--qrels is for --requests; a collection has its own (--split NAME)")
        if self.requests and self.teacher is TeacherName.QRELS and not self.qrels:
            raise ConfigError("--teacher qrels needs the judgements of the requests; give --qrels")
        if (largest := self.sizes[1]) > self.depth:
            raise ConfigError(
                f"lists of {largest} passages need as many candidates, but --depth {self.depth} gives fewer; raise it "
                "or lower --passages"
            )

    @property
    def held_out(self) -> Path:
        """The file of the held-out lists, which exists if `held_out_share` is above 0."""
        return self.out.with_name(f"{self.out.stem}-held-out{self.out.suffix}")

    @property
    def sizes(self) -> tuple[int, int]:
        """Smallest and largest number of passages. Raises: ConfigError when `passages` cannot be parsed."""
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", self.passages)
        smallest, largest = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 2 <= smallest <= largest:
            raise ConfigError(
                f"--passages {self.passages}: expected a number of at least 2, or a range of such numbers as in 5-20"
            )
        return smallest, largest

    @property
    def needs_vectors(self) -> bool:
        """True when the first stage, the teacher or the order reads the encoder's vectors."""
        return bool(self.collection) or self.teacher is TeacherName.FUSION or self.order is ListOrder.COSINE

    @property
    def prefix(self) -> str:
        """Prefix of the query_ids."""
        own = self.requests.absolute().parent.name if self.requests else beir.name_of(Path(self.collection))
        return self.name or own
