"""Measures the relevance of long documents with one passage that answers the query.

    python -m scripts.reproduce.long_documents --requests requests.jsonl --qrels qrels.txt

Each query gets one document with its best judged passage in the middle, and documents of passages of other queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import typer

from rerank.commands.run import run
from rerank.config.named import config_of_model
from rerank.readers.candidates import CandidateList, read_requests
from rerank.readers.qrels import read_qrels
from rerank.reranking.blocking import Reranker
from rerank.types import Passage, Query, RankedCandidate, RankOptions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

#: Candidates of a query, passages of a document, and its parts at most.
_DOCUMENTS, _PASSAGES, _MAX_CHUNKS = 20, 13, 30


class Question(NamedTuple):
    """A query with the passage that answers it, and documents; the first one has that passage."""

    query: Query
    answer: str
    documents: Sequence[str]


class Outcome(NamedTuple):
    """The answer of a model to a question: the rank of the right document (0: first), and relevances."""

    rank: int
    right: float
    unrelated: Sequence[float]
    answer_alone: float


@app.command()
def main(
    requests: Annotated[Path, typer.Option(help="RankLLM request file.")],
    qrels: Annotated[Path, typer.Option(help="Its judgements.")],
    model: Annotated[str, typer.Option(help="Name of a bundled model that gives the relevance.")] = "default",
    threshold: Annotated[float, typer.Option(help="min_relevance.")] = 0.2,
    limit: Annotated[int, typer.Option(help="Number of queries.")] = 20,
) -> None:
    """Print how often the right document comes first, and which documents pass the threshold."""
    questions = list(islice(_questions(list(read_requests(requests)), qrels), limit))
    with Reranker(config_of_model(model)) as reranker:
        found = [_outcome(reranker, question) for question in questions]
    unrelated = [relevance for result in found for relevance in result.unrelated]
    print(f"{model}, {len(found)} queries of {requests}, {_DOCUMENTS} documents of {_PASSAGES} passages each")
    print(f"the right document is first: {sum(result.rank == 0 for result in found)}")
    print(f"it passes {threshold}: {sum(result.right >= threshold for result in found)}")
    print(f"its passage alone passes: {sum(result.answer_alone >= threshold for result in found)}")
    print(f"unrelated documents pass: {sum(relevance >= threshold for relevance in unrelated)} of {len(unrelated)}")


def _questions(lists: Sequence[CandidateList], qrels: Path) -> Iterator[Question]:
    """The queries with a candidate of the highest grade. The passages of others are drawn by a fixed seed."""
    grades = {(qrel.query_id, qrel.doc_id): qrel.relevance for qrel in read_qrels(qrels)}
    highest, draw = max(grades.values()), Random(0)
    for request in lists:
        query_id = request.query.query_id
        answers = [c.text or "" for c in request.candidates if grades.get((query_id, c.doc_id)) == highest]
        if not answers:
            continue
        others = [c.text or "" for other in lists if other is not request for c in other.candidates]
        passages = draw.sample(others, _DOCUMENTS * _PASSAGES)
        passages[_PASSAGES // 2] = answers[0]
        documents = [" ".join(passages[start : start + _PASSAGES]) for start in range(0, len(passages), _PASSAGES)]
        yield Question(request.query, answers[0], documents)


def _outcome(reranker: Reranker, question: Question) -> Outcome:
    candidates = [Passage(str(index), text) for index, text in enumerate(question.documents)]
    options = RankOptions(max_chunks_per_doc=_MAX_CHUNKS, ordered=False)
    ranked = reranker.rerank(question.query, candidates, options).ranked
    rank = next(rank for rank, item in enumerate(ranked) if item.position == 0)
    (alone,) = reranker.rerank(question.query, [Passage("answer", question.answer)]).ranked
    unrelated = [_relevance(item) for item in ranked if item.position]
    return Outcome(rank, _relevance(ranked[rank]), unrelated, _relevance(alone))


def _relevance(item: RankedCandidate) -> float:
    if item.relevance is None:
        raise ValueError("the model gives no relevance; name one that does")
    return item.relevance


if __name__ == "__main__":
    run(app)
