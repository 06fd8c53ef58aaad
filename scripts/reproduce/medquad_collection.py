"""Makes a collection of MedQuAD's answers: a question's own answer is relevant.

python -m scripts.reproduce.medquad_collection --medquad medquad/qa.jsonl.gz --out medquad/answers
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

from rerank.util.files import atomic_file


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with the id of its answer.

    Attributes:
        is_always_asked: the question is about one of a tenth of the diseases, whose questions are all asked.
    """

    query_id: str
    text: str
    answer_id: str
    is_always_asked: bool


def main(
    medquad: Annotated[Path, typer.Option(help="qa.jsonl.gz, with the disease of each question in `focus`.")],
    out: Annotated[Path, typer.Option(help="Folder of the collection, in BEIR layout.")],
    answers: Annotated[int, typer.Option(help="Number of answers, at random.")] = 3000,
    others: Annotated[int, typer.Option(help="Number of questions about the other diseases, at random.")] = 300,
) -> None:
    """Write answers, questions and judgements."""
    texts, questions = _read(medquad, answers)
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    drawn = [question for question in questions if not question.is_always_asked]
    asked = Random(1).sample(drawn, min(others, len(drawn)))
    asked += [question for question in questions if question.is_always_asked]
    _write(out / "corpus.jsonl", ({"_id": answer_id, "text": text} for text, answer_id in texts.items()))
    _write(out / "queries.jsonl", ({"_id": question.query_id, "text": question.text} for question in asked))
    with atomic_file(out / "qrels" / "test.tsv") as temporary:
        judgements = (f"{question.query_id} 0 {question.answer_id} 1\n" for question in asked)
        temporary.write_text("".join(judgements), encoding="utf-8")
    print(f"{out}: {len(asked):,} questions over {len(texts):,} answers")


def _read(medquad: Path, answers: int) -> tuple[dict[str, str], list[Question]]:
    """The text of each answer with its id, and the questions. Equal answers have one id."""
    with gzip.open(medquad, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["answer"].strip()]
    Random(0).shuffle(rows)
    texts: dict[str, str] = {}
    questions = []
    for row in rows[:answers]:
        answer_id = texts.setdefault(row["answer"], str(row["_id"]))
        is_always_asked = zlib.crc32(row["focus"].encode()) % 10 == 0
        questions.append(Question(f"q{row['_id']}", row["question"], answer_id, is_always_asked))
    return texts, questions


def _write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    typer.run(main)
