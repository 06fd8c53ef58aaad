"""Makes judged lists of MedQuAD: the first answers of a hybrid search for each question, whose own answer is relevant.

    python -m scripts.reproduce.medquad_requests --medquad medquad/qa.jsonl.gz --out lists
    train-fusion --lists lists/train.jsonl --qrels lists/qrels.txt --output-dir runs/medquad
    eval-trec-dl --requests lists/test.jsonl --qrels lists/qrels.txt --model default \\
      --model trained=runs/medquad/final --out results/medquad

Questions about one disease are all in train.jsonl or all in test.jsonl, which has a tenth of the diseases. The folder
`answers` is a collection with all of them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from rerank import Reranker
from rerank.collections import open_collection
from rerank.config import load_config
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.retrieval.build import build_index
from rerank.types import FirstStage, Passage, Query, RankOptions
from rerank.util.files import atomic_file


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with the id of its answer."""

    query_id: str
    text: str
    answer_id: str
    is_test: bool


def main(
    medquad: Annotated[Path, typer.Option(help="qa.jsonl.gz, with the disease of each question in `focus`.")],
    out: Annotated[Path, typer.Option(help="Folder for the lists, the judgements, the answers and the index.")],
    answers: Annotated[int, typer.Option(help="Number of answers, at random.")] = 7000,
    train: Annotated[int, typer.Option(help="Number of training questions, at random.")] = 2000,
    depth: Annotated[int, typer.Option(help="Candidates of a question.")] = 100,
) -> None:
    """Write the lists of training and test questions."""
    texts, questions = _read(medquad, answers)
    collection = out / "answers"
    collection.mkdir(parents=True, exist_ok=True)
    _write(collection / "corpus.jsonl", ({"_id": answer_id, "text": text} for text, answer_id in texts.items()))
    if not (out / "index").exists():
        build_index(open_collection(str(collection)), out / "index", Encoder(), sparse_encoder=SparseEncoder())
    of_training = [question for question in questions if not question.is_test]
    parts = {
        "train": Random(1).sample(of_training, min(train, len(of_training))),
        "test": [question for question in questions if question.is_test],
    }
    text_of = {answer_id: text for text, answer_id in texts.items()}
    config = load_config(None, [{"name": "identity", "ranker": "identity"}], index=out / "index")
    with Reranker(config) as reranker:
        for name, of_part in parts.items():
            _write(out / f"{name}.jsonl", (_request(reranker, question, text_of, depth) for question in of_part))
            print(f"{out / name}.jsonl: {len(of_part):,} questions over {len(texts):,} answers")
    asked = [question for of_part in parts.values() for question in of_part]
    _write(collection / "queries.jsonl", ({"_id": question.query_id, "text": question.text} for question in asked))
    judgements = "".join(f"{question.query_id} 0 {question.answer_id} 1\n" for question in asked)
    (collection / "qrels").mkdir(exist_ok=True)
    for path in (out / "qrels.txt", collection / "qrels" / "test.tsv"):
        with atomic_file(path) as temporary:
            temporary.write_text(judgements, encoding="utf-8")


def _read(medquad: Path, answers: int) -> tuple[dict[str, str], list[Question]]:
    """The text of each answer with its id, and the questions. Equal answers have one id."""
    with gzip.open(medquad, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["answer"].strip()]
    Random(0).shuffle(rows)
    texts: dict[str, str] = {}
    questions = []
    for row in rows[:answers]:
        answer_id = texts.setdefault(row["answer"], str(row["_id"]))
        is_test = zlib.crc32(row["focus"].encode()) % 10 == 0
        questions.append(Question(f"q{row['_id']}", row["question"], answer_id, is_test))
    return texts, questions


def _request(reranker: Reranker, question: Question, text_of: dict[str, str], depth: int) -> dict[str, object]:
    """A question with its candidates, which have the scores of BM25, as the fusion reads those of a hybrid search."""
    query = Query(question.text, question.query_id)
    found = reranker.search(query, FirstStage.HYBRID_RRF, depth, RankOptions("identity")).ranking.ranked
    candidates = [_candidate(result.passage, text_of) for result in found]
    return {"query": {"qid": question.query_id, "text": question.text}, "candidates": candidates}


def _candidate(candidate: Passage, text_of: dict[str, str]) -> dict[str, object]:
    doc_id = candidate.doc_id
    return {"docid": doc_id, "score": candidate.bm25_score, "doc": {"text": text_of[doc_id]}}


def _write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    typer.run(main)
