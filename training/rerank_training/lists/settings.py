"""Settings of `build-lists`: one dataclass field per command-line flag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rerank.errors import ConfigError
from rerank_training.lists.sampling import ListOrder, ListSampling


class TeacherName(StrEnum):
    """Teachers that assign the relevance of a list's passages; `rerank_training.lists.teachers` implements them."""

    QRELS = "qrels"
    COSINE = "cosine"
    FUSION = "fusion"
    QRELS_FUSION = "qrels-fusion"
    RERANKER = "reranker"

    @property
    def reads_qrels(self) -> bool:
        """True if requests need their judgements."""
        return self in (TeacherName.QRELS, TeacherName.QRELS_FUSION)

    @property
    def fuses(self) -> bool:
        """True if it needs the scores of the first stage, and vectors."""
        return self in (TeacherName.FUSION, TeacherName.QRELS_FUSION)


class QuerySource(StrEnum):
    """Source of the queries to a collection: a sentence of each passage, or a file."""

    SENTENCES = "sentences"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildListsSettings:
    """One source, one teacher, and the sampling of the lists.

    Raises:
        ConfigError: options contradict each other, or `passages` cannot be parsed.
    """

    out: Annotated[Path, "JSONL file to write; it must not exist yet."]
    teacher: Annotated[
        TeacherName,
        "Source of the relevance. qrels: the judgements, or 1 for the passage that the query was taken from; cosine: "
        "the encoder; fusion: first stage and encoder (--requests only); qrels-fusion: the judgements, and the fusion "
        "among passages of equal grade; reranker: the order of a ranker of ours.",
    ]
    fusion_weight: Annotated[
        float,
        typer.Option(
            min=0, help="For the teachers that fuse: weight of the first stage's z-scores; that of the encoder's is 1."
        ),
    ] = 0.3
    requests: Annotated[Path | None, "Source: RankLLM request JSONL, queries with their candidates."] = None
    collection: Annotated[str, "Source: a folder in BEIR layout, with a corpus.jsonl."] = ""
    medquad: Annotated[Path | None, 'Source: questions with answers, JSONL or .gz: {"_id", "question", "answer"}.'] = (
        None
    )
    qrels: Annotated[Path | None, "For --requests: judgements, in the form of TREC or BEIR."] = None
    queries: Annotated[
        QuerySource, "For --collection: the queries are a sentence of each passage, or those of queries.jsonl (file)."
    ] = QuerySource.SENTENCES
    split: Annotated[str, "For --queries file: name of the judgements, as in qrels/SPLIT.tsv."] = "train"
    remove_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="For --collection: share of passages from which the query is removed, 0-1."),
    ] = 0.0
    passages: Annotated[str, "Number of passages in a list: a number, or a range such as 5-20."] = "20"
    depth: Annotated[int, typer.Option(min=0, help="Candidates are sampled from this many top first-stage ranks.")] = (
        100
    )
    random_share: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of random negatives among the passages other than the relevant one, 0-1."
        ),
    ] = 0.0
    order: Annotated[
        ListOrder,
        "Order of the passages in a list; with --random-share 1 always random. sliding: the first half in first-stage "
        "order and the second half nearly in the teacher's, as in a window of a sliding pass.",
    ] = ListOrder.FIRST_STAGE
    lists_per_query: Annotated[int, typer.Option(min=1, help="Number of lists sampled for each query.")] = 1
    passage_words: Annotated[
        int, typer.Option(min=0, help="Number of words to which passages are truncated; 0: no truncation.")
    ] = 0
    limit: Annotated[
        int,
        typer.Option(
            min=0, help="Size of a random sample of the requests, judged queries, or passages to use; 0: use all."
        ),
    ] = 0
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
        Path | None, "For --teacher reranker: YAML settings of its models. Default: those of a service."
    ] = None
    model: Annotated[str, "For --teacher reranker: name of one of the models; empty: the first."] = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.requests, self.collection, self.medquad))) != 1:
            raise ConfigError("give exactly one of --requests, --collection and --medquad")
        if self.qrels and not self.requests:
            raise ConfigError("--qrels is for --requests; a collection has its own (--queries file --split NAME)")
        if self.requests and self.teacher.reads_qrels and not self.qrels:
            raise ConfigError(f"--teacher {self.teacher} needs the judgements of the requests; give --qrels")
        if not self.requests and self.teacher.fuses:
            raise ConfigError(
                f"--teacher {self.teacher} needs first-stage scores, which --requests have; use --teacher cosine"
            )
        largest = self.sampling.max_passages
        candidates = largest - round(self.random_share * (largest - 1))
        if self.random_share < 1 and candidates > self.depth:
            raise ConfigError(
                f"lists of {largest} passages need {candidates} candidates, but --depth {self.depth} "
                "gives fewer; raise it, lower --passages or raise --random-share"
            )

    @property
    def held_out(self) -> Path:
        """The file of the held-out lists, which exists if `held_out_share` is above 0."""
        return self.out.with_name(f"{self.out.stem}-held-out{self.out.suffix}")

    @property
    def sampling(self) -> ListSampling:
        """Size, random negatives and order of the lists. Raises: ConfigError when `passages` cannot be parsed."""
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", self.passages)
        smallest, largest = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 2 <= smallest <= largest:
            raise ConfigError(
                f"--passages {self.passages}: expected a number of at least 2, or a range of such numbers as in 5-20"
            )
        # When all other passages are random, any other order would reveal which passage is relevant.
        order = ListOrder.RANDOM if self.random_share == 1 else self.order
        return ListSampling(smallest, largest, self.random_share, order)

    @property
    def needs_vectors(self) -> bool:
        """True when the first stage, the teacher or the order reads the encoder's vectors."""
        read_by_teacher = self.teacher is TeacherName.COSINE or self.teacher.fuses
        read_by_first_stage = self.requests is None and self.random_share < 1
        return read_by_teacher or read_by_first_stage or self.sampling.order is ListOrder.COSINE

    @property
    def prefix(self) -> str:
        """Prefix of the query_ids."""
        source = self.requests or self.medquad or Path(self.collection) / "corpus.jsonl"
        return self.name or source.absolute().parent.name
