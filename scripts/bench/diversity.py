"""Shows what each diversity gains on lists with near duplicates, and what it costs on judged lists and in time.

    pip install pyndeval
    python -m scripts.bench.diversity --index indexes/cranfield --collection cranfield

The generated lists are questions about products, which come in colours and sizes, and about messages of logs, which
come again with other times and ids. A question has five answers, each in eight wordings, among other products or
messages. Answers are its subtopics.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Annotated, NamedTuple

import ir_measures
import typer
from ir_measures import Measure, Qrel, ScoredDoc, alpha_nDCG, nDCG

from rerank.collections import open_collection
from rerank.config.named import config_of_model
from rerank.models.encoder import Encoder
from rerank.reranking.blocking import Reranker
from rerank.reranking.diversity import diversified
from rerank.types import FirstStage, NearDuplicates, Ranking, RankOptions

_SEED, _QUESTIONS, _ANSWERS, _WORDINGS, _DEPTH = 7, 40, 5, 8, 100
_DIVERSITIES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_PRODUCTS = (
    "kettle", "backpack", "headlamp", "tent", "bicycle pump", "camping stove", "desk lamp", "office chair",
    "rain jacket",
)  # fmt: skip
_BRANDS = (
    "Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ironwood", "Juniper", "Kapok", "Larch",
)  # fmt: skip
_TRAITS = (
    "light enough for long walks", "made of recycled steel", "folds to the size of a book", "holds three litres",
    "with a five year warranty", "quiet at night", "for wet weather", "that children can use", "with a spare battery",
    "that fits under a seat",
)  # fmt: skip
_COLOURS, _SIZES = ("red", "blue", "green", "black", "white", "grey", "orange", "yellow"), ("S", "M", "L", "XL")
_SERVICES = ("checkout", "inventory", "search", "billing", "login", "mail", "shipping", "reports", "catalogue")
_FAULTS = (
    "connection to the database refused", "timeout after 30000 ms while waiting for a lock",
    "disk quota exceeded while writing the journal", "certificate of the peer has expired",
    "payload is larger than the limit of 1048576 bytes", "worker was killed because it used too much memory",
    "schema version 12 is older than the required version 14", "rate limit of the provider reached",
    "name of host could not be resolved", "deadlock found, transaction was rolled back",
)  # fmt: skip


class Question(NamedTuple):
    """A query and its candidates.

    Attributes:
        texts: doc_id → text.
        sources: doc_id → what the text says, without its variation.
        answers: the sources that answer the query.
    """

    query: str
    texts: dict[str, str]
    sources: dict[str, str]
    answers: list[str]


def questions(generator: random.Random) -> Iterator[Question]:
    """The generated lists, half of them about products and half about logs."""
    for number in range(_QUESTIONS):
        if number % 2:
            trait, kind = generator.choice(_TRAITS), generator.choice(_PRODUCTS)
            query, wording = f"{kind} {trait}", _product
            asked = [f"{brand} {kind} {trait}" for brand in generator.sample(_BRANDS, _ANSWERS)]
            other_kinds = [other for other in _PRODUCTS if other != kind]
            others = [f"{generator.choice(_BRANDS)} {other} {generator.choice(_TRAITS)}" for other in other_kinds]
        else:
            service = generator.choice(_SERVICES)
            query, wording = f"why does the {service} service fail", _line
            asked = [f"ERROR {service}: {fault}" for fault in generator.sample(_FAULTS, _ANSWERS)]
            others = [f"INFO {other}: started in time" for other in _SERVICES if other != service]
        rows = [(wording(source, generator), source) for source in asked + others for _ in range(_WORDINGS)]
        generator.shuffle(rows)
        texts = {f"q{number}-{place}": text for place, (text, _) in enumerate(rows)}
        sources = {f"q{number}-{place}": source for place, (_, source) in enumerate(rows)}
        yield Question(query, texts, sources, asked)


def _product(text: str, generator: random.Random) -> str:
    colour, size = generator.choice(_COLOURS), generator.choice(_SIZES)
    return f"{text}. Colour {colour}, size {size}, item {generator.randrange(10**6)}."


def _line(text: str, generator: random.Random) -> str:
    at = f"2026-11-{generator.randrange(1, 25):02} {generator.randrange(24):02}:{generator.randrange(60):02}"
    return f"{at} {text} request={generator.randrange(16**8):08x} pid={generator.randrange(10**5)}"


def main(
    collection: Annotated[str, typer.Option(help="A collection with judgements.")],
    index: Annotated[Path, typer.Option(help="Its index.")],
    model: Annotated[str, typer.Option(help="Name of a bundled model.")] = "default",
) -> None:
    """Print a row for each diversity, and the time of the comparison."""
    made, judged = list(questions(random.Random(_SEED))), open_collection(collection)
    qrels = [Qrel(qrel.query_id, qrel.doc_id, qrel.relevance) for qrel in judged.qrels("test")]
    subtopics = [
        Qrel(str(number), doc_id, 1, str(question.answers.index(source)))
        for number, question in enumerate(made)
        for doc_id, source in question.sources.items()
        if source in question.answers
    ]
    unordered = RankOptions(ordered=False)
    with Reranker(config_of_model(model).model_copy(update={"index": index})) as reranker:
        lists = {
            str(n): reranker.rerank(question.query, list(question.texts.items()), unordered)
            for n, question in enumerate(made)
        }
        found = {query.query_id: reranker.search(query, FirstStage.BM25, _DEPTH).ranking for query in judged.queries()}
    settings = {f"diversity {diversity:g}": RankOptions(diversity=diversity, top_n=10) for diversity in _DIVERSITIES}
    settings["near_duplicates: drop"] = RankOptions(near_duplicates=NearDuplicates.DROP, top_n=10)
    encoder = Encoder(vector_cache_bytes=10**8)
    new_ms = [_cpu_ms(encoder, ranking, settings["diversity 0.3"]) for ranking in lists.values()]
    known_ms = [_cpu_ms(encoder, ranking, settings["diversity 0.3"]) for ranking in lists.values()]
    print("| | alpha-nDCG@10 | repetitions in the first ten | nDCG@10 of the collection |")
    print("| --- | ---: | ---: | ---: |")
    for name, options in settings.items():
        chosen = {key: _diversified(encoder, ranking, options) for key, ranking in lists.items()}
        judged_lists = {key: _diversified(encoder, ranking, options) for key, ranking in found.items()}
        gain, cost = _mean(alpha_nDCG @ 10, subtopics, chosen), _mean(nDCG @ 10, qrels, judged_lists)
        share = mean(_repeated(question, ranking) for question, ranking in zip(made, chosen.values(), strict=True))
        print(f"| {name} | {gain:.3f} | {share:.0%} | {cost:.4f} |", flush=True)
    texts = mean(len(question.texts) for question in made)
    print(
        f"{texts:.0f} texts: {median(new_ms):.0f} ms of one core if they are new, {median(known_ms):.1f} ms otherwise"
    )


def _diversified(encoder: Encoder, ranking: Ranking, options: RankOptions) -> Ranking:
    work = diversified(encoder, ranking, options)
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Ranking = end.value
            return result


def _cpu_ms(encoder: Encoder, ranking: Ranking, options: RankOptions) -> float:
    start_s = time.process_time()
    _diversified(encoder, ranking, options)
    return (time.process_time() - start_s) * 1000


def _repeated(question: Question, ranking: Ranking) -> float:
    """The share of the results that say the same as a result before them."""
    said = [question.sources[result.candidate.passage.doc_id] for result in ranking.ranked]
    return 1 - len(set(said)) / len(said)


def _mean(measure: Measure, qrels: Sequence[Qrel], rankings: Mapping[str, Ranking]) -> float:
    run = [
        ScoredDoc(query_id, result.candidate.passage.doc_id, float(-rank))
        for query_id, ranking in rankings.items()
        for rank, result in enumerate(ranking.ranked)
    ]
    return float(ir_measures.calc_aggregate([measure], qrels, run)[measure])


if __name__ == "__main__":
    typer.run(main)
