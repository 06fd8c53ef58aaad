"""`build-lists`: makes training lists from requests, a collection, or questions with answers.

build-lists --requests requests.jsonl --qrels qrels.txt --teacher fusion --lists-per-query 5 --out lists/dl21.jsonl
build-lists --collection cranfield --queries sentences --remove-share 0.5 --teacher cosine --out lists/cranfield.jsonl
build-lists --medquad qa.jsonl.gz --passages 4 --random-share 1 --teacher qrels --limit 2000 --out lists/easy.jsonl
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Annotated, TypeVar

import numpy as np
import typer
from rich.progress import track

from rerank.collections import beir
from rerank.collections.requests import read_beir_qrels, read_beir_queries, read_requests
from rerank.commands.cli import console, run
from rerank.commands.display import indexing_progress
from rerank.config import load_config
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.reranker import Reranker
from rerank.types import Matrix, Passage, Query
from rerank_training.data import TrainingList, read_grades, write_lists
from rerank_training.neighbours import Asked, lonely_pools, neighbour_pools, with_vectors
from rerank_training.sampling import Draw, Order, Pool, draw
from rerank_training.sources import (
    QueryKind,
    judged_queries,
    pseudo_queries,
    read_collection,
    read_medquad,
    read_titles,
    request_pools,
    request_texts,
)
from rerank_training.teachers import ByReranker, Teacher, by_cosine, by_fusion, by_grades

T = TypeVar("T")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_ENCODE_CHUNK = 512


class TeacherName(StrEnum):
    """Teachers, as the command line spells them."""

    QRELS = "qrels"
    COSINE = "cosine"
    FUSION = "fusion"
    RERANKER = "reranker"


@dataclass(frozen=True, slots=True)
class Source:
    """What lists are drawn from: pools (made one after the other), how many, and the passages of all of them."""

    pools: Iterable[Pool]
    queries: int
    passages: Sequence[Passage]


@dataclass(frozen=True, slots=True)
class Options:
    """What all sources need to know."""

    name: str
    words: int
    depth: int
    limit: int
    seed: int
    encoder: Encoder | None


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="The JSONL file to write; it appears when all lists are made.")],
    teacher: Annotated[TeacherName, typer.Option(help="Who says what is relevant; qrels: judgements, or the origin.")],
    requests: Annotated[Path | None, typer.Option(help="RankLLM request JSONL: queries with candidates.")] = None,
    collection: Annotated[str, typer.Option(help="Folder in BEIR layout (corpus.jsonl).")] = "",
    medquad: Annotated[Path | None, typer.Option(help='JSONL (.gz): {"_id", "question", "answer"}.')] = None,
    qrels: Annotated[Path | None, typer.Option(help="requests: judgements in TREC form.")] = None,
    queries: Annotated[QueryKind, typer.Option(help="collection: what asks for its passages.")] = QueryKind.SENTENCES,
    split: Annotated[str, typer.Option(help="collection with queries of a file: which qrels/SPLIT.tsv.")] = "train",
    remove_share: Annotated[
        float, typer.Option(min=0, max=1, help="collection: how often the query is taken out of its passage.")
    ] = 0.0,
    passages: Annotated[str, typer.Option(help="Passages of a list: a number, or a range such as 5-20.")] = "20",
    depth: Annotated[int, typer.Option(min=0, help="First-stage ranks from which candidates are drawn.")] = 100,
    random_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the other passages that are random ones, not candidates.")
    ] = 0.0,
    order: Annotated[
        Order, typer.Option(help="Of the passages of a list; with --random-share 1 it is random.")
    ] = Order.FIRST_STAGE,
    lists_per_query: Annotated[int, typer.Option(min=1, help="Lists drawn for each query.")] = 1,
    passage_words: Annotated[int, typer.Option(min=0, help="Words after which passages are cut; 0: not.")] = 0,
    limit: Annotated[
        int, typer.Option(min=0, help="Requests, judged queries, or passages of the rest to use, at random; 0: all.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same lists.")] = 0,
    name: Annotated[str, typer.Option(help="Begins the query_ids; empty: the folder of the source.")] = "",
    encoder: Annotated[str, typer.Option(help="Name or folder of the encoder.")] = DEFAULT_ENCODER,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    config: Annotated[Path | None, typer.Option(help="reranker: settings of its models.")] = None,
    model: Annotated[str, typer.Option(help="reranker: one of the models; empty: the first.")] = "",
) -> None:
    """Make training lists."""
    how = _draw(passages, random_share, depth, order)
    _check(teacher, requests, collection, medquad, qrels)
    origin = requests or medquad or Path(collection) / "corpus.jsonl"
    asks_cosine = teacher in (TeacherName.COSINE, TeacherName.FUSION) or how.order is Order.COSINE
    needs_vectors = asks_cosine or (requests is None and random_share < 1)
    loaded = Encoder(encoder, device) if needs_vectors else None
    options = Options(name or origin.absolute().parent.name, passage_words, depth, limit, seed, loaded)
    if requests:
        source = _from_requests(requests, qrels, options)
    elif medquad:
        source = _from_questions(medquad, options)
    else:
        source = _from_collection(beir.checked_folder(collection), queries, split, remove_share, options)
    left_out: Counter[str] = Counter()
    with _opened(teacher, config, model) as judge:
        written = write_lists(out, _lists(source, judge, how, lists_per_query, seed, left_out))
    console.print(f"{out}: {written:,} lists from {source.queries:,} queries, taught by {teacher}")
    if left_out:
        console.print(_said(left_out))


def one_list(
    pool: Pool, strangers: Sequence[Passage], teacher: Teacher, how: Draw, random: Random, number: int = 1
) -> TrainingList:
    """Draws a list and has it taught. `number` tells the lists of one query apart.

    Raises:
        CollectionError: too few passages, or nothing to learn from.
    """
    drawn = draw(pool, strangers, how, random)
    if len(drawn) < 2:
        raise CollectionError("fewer than two passages")
    relevance = teacher(pool, drawn)
    if len(set(relevance)) < 2:
        raise CollectionError("all passages equally relevant")
    return TrainingList(_numbered(pool.query, number), drawn, relevance)


def _lists(
    source: Source, teacher: Teacher, how: Draw, lists_per_query: int, seed: int, left_out: Counter[str]
) -> Iterator[TrainingList]:
    """All lists of a source, with a progress bar; counts those that cannot be made.

    Raises:
        CollectionError: there is none that can.
    """
    made = 0
    for pool in track(source.pools, "lists", total=source.queries, console=console, disable=not console.is_terminal):
        random = Random(f"{seed}:{pool.query.query_id}")  # a list does not depend on what was made before it
        for number in range(1, lists_per_query + 1):
            try:
                yield one_list(pool, source.passages, teacher, how, random, number)
                made += 1
            except CollectionError as error:
                left_out[str(error)] += 1
    if not made:
        raise CollectionError(f"no list can be made of {source.queries} queries; {_said(left_out) or 'give some'}")


def _said(left_out: Counter[str]) -> str:
    return "; ".join(f"{count:,} left out: {reason}" for reason, count in left_out.items())


def _numbered(query: Query, number: int) -> Query:
    return query if number == 1 else replace(query, query_id=f"{query.query_id}#{number}")


def _from_requests(path: Path, qrels: Path | None, options: Options) -> Source:
    requests = _some(read_requests(path), options)
    passages = request_texts(requests, options.words)
    if options.encoder:
        passages = with_vectors(passages, _encoded(options.encoder, passages))
    grades = read_grades(qrels) if qrels else {}
    encode = options.encoder.encode if options.encoder else None
    pools = request_pools(requests, passages, grades, options.depth, encode, options.name)
    return Source(pools, len(requests), passages)


def _from_questions(path: Path, options: Options) -> Source:
    asked, answers = read_medquad(path, options.name, options.words)
    passages = _some(answers, options)
    kept = {passage.doc_id for passage in passages}
    return _from_asked([item for item in asked if kept & item.grades.keys()], passages, options)


def _from_collection(folder: Path, kind: QueryKind, split: str, remove_share: float, options: Options) -> Source:
    passages = read_collection(folder, options.words)
    if kind is QueryKind.FILE:
        judged = judged_queries(read_beir_queries(folder), read_beir_qrels(folder, split), options.name)
        return _from_asked(_some(judged, options), passages, options)
    passages = _some(passages, options)
    titles = read_titles(folder) if kind is QueryKind.TITLES else {}
    asked = pseudo_queries(passages, kind, titles, remove_share, options.seed, options.name)
    return _from_asked(asked, passages, options)


def _from_asked(asked: list[Asked], passages: list[Passage], options: Options) -> Source:
    """The nearest neighbours of the queries; without an encoder their own passages only."""
    if options.encoder is None:
        return Source(lonely_pools(asked, passages), len(asked), passages)
    vectors = _encoded(options.encoder, passages)
    passages = with_vectors(passages, vectors)
    return Source(
        neighbour_pools(asked, passages, vectors, options.encoder.encode, options.depth), len(asked), passages
    )


def _some(items: list[T], options: Options) -> list[T]:
    """`limit` of the items at random, in their order."""
    if not options.limit or options.limit >= len(items):
        return items
    return [items[place] for place in sorted(Random(options.seed).sample(range(len(items)), options.limit))]


def _encoded(encoder: Encoder, passages: Sequence[Passage]) -> Matrix:
    """(len(passages), D), with a progress bar: some 70 passages/s on two cores."""
    vectors = np.empty((len(passages), encoder.id.dimension), dtype=np.float32)
    with indexing_progress(console) as progress:
        for start in range(0, len(passages), _ENCODE_CHUNK):
            chunk = passages[start : start + _ENCODE_CHUNK]
            vectors[start : start + len(chunk)] = encoder.encode([passage.text for passage in chunk])
            progress.report("vectors", start + len(chunk), len(passages))
    return vectors


@contextmanager
def _opened(teacher: TeacherName, config: Path | None, model: str) -> Iterator[Teacher]:
    plain: dict[TeacherName, Teacher] = {
        TeacherName.QRELS: by_grades,
        TeacherName.COSINE: by_cosine,
        TeacherName.FUSION: by_fusion,
    }
    if teacher in plain:
        yield plain[teacher]
        return
    with Reranker(load_config(config)) as reranker:
        yield ByReranker(reranker, model)


def _draw(passages: str, random_share: float, depth: int, order: Order) -> Draw:
    """Raises: ConfigError when `passages` is no range, or needs more candidates than `depth`."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", passages)
    smallest, largest = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 2 <= smallest <= largest:
        raise ConfigError(f"--passages {passages}: expected a number from 2, or a range of them such as 5-20")
    candidates = largest - round(random_share * (largest - 1))
    if random_share < 1 and candidates > depth:
        raise ConfigError(
            f"lists of {largest} passages need {candidates} candidates, --depth {depth} gives fewer; raise it, "
            "lower --passages or raise --random-share"
        )
    # where all others are random, the order would say which passage is right
    return Draw(smallest, largest, random_share, Order.RANDOM if random_share == 1 else order)


def _check(
    teacher: TeacherName, requests: Path | None, collection: str, medquad: Path | None, qrels: Path | None
) -> None:
    """Raises: ConfigError when the options contradict each other."""
    if sum(map(bool, (requests, collection, medquad))) != 1:
        raise ConfigError("give one of --requests, --collection and --medquad")
    if qrels and not requests:
        raise ConfigError("--qrels belongs to --requests; a collection has its own (--queries file --split NAME)")
    if requests and teacher is TeacherName.QRELS and not qrels:
        raise ConfigError("--teacher qrels needs the --qrels of the requests")
    if not requests and teacher is TeacherName.FUSION:
        raise ConfigError("--teacher fusion needs BM25 scores, which only --requests have; use cosine")


def main() -> None:
    run(app)


if __name__ == "__main__":
    main()
