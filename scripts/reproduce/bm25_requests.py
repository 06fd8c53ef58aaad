"""Searches a collection with BM25 for questions, and writes a request file for `build-lists --requests`.

python -m scripts.reproduce.bm25_requests --collection passages --questions questions.jsonl --out written.jsonl

The passages are truncated first, so that BM25 reads what the model will read.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rerank_training.lists.sources import read_collection, read_medquad

from rerank.retrieval.bm25 import BM25Retriever, write_bm25
from rerank.types import Passage
from rerank.util.files import atomic_file


def main(
    collection: Annotated[Path, typer.Option(help="Folder in BEIR layout.")],
    questions: Annotated[Path, typer.Option(help="JSONL of questions, as write_questions.py writes it.")],
    out: Annotated[Path, typer.Option(help="Request file to write, JSONL.")],
    depth: Annotated[int, typer.Option(min=2, help="Number of candidates per question.")] = 100,
    passage_words: Annotated[int, typer.Option(min=0, help="Words of a passage; 0: all.")] = 0,
) -> None:
    """Write the first BM25 candidates of each question."""
    passages = read_collection(collection, passage_words)
    queries = [item.query for item in read_medquad(questions, questions.stem, passage_words)[0]]
    with tempfile.TemporaryDirectory() as work:
        texts, index = Path(work) / "texts", Path(work) / "bm25"
        write_bm25((passage.text for passage in passages), texts, index, 1, lambda _: None)
        found = BM25Retriever(index).search(queries, depth)
    with atomic_file(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, rows in zip(queries, found, strict=True):
            candidates = [_candidate(passages[hit.row], hit.score) for hit in rows]
            request = {"query": {"qid": query.query_id, "text": query.text}, "candidates": candidates}
            file.write(json.dumps(request) + "\n")
    print(f"{out}: {len(queries):,} questions over {len(passages):,} passages")


def _candidate(passage: Passage, score: float) -> dict[str, object]:
    return {"docid": passage.doc_id, "score": score, "doc": {"text": passage.text}}


if __name__ == "__main__":
    typer.run(main)
