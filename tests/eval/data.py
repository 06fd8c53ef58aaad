"""Small files that users give, in the forms of the readers; calls of the evaluation commands, and what they wrote."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

#: query_id → doc_id → grade
Grades = Mapping[str, Mapping[str, int]]


def write(path: Path, *lines: object) -> Path:
    """Writes a line each; what is no text is written as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def write_qrels(path: Path, grades: Grades) -> Path:
    """Judgements in TREC's form."""
    return write(path, *(f"{q} 0 {doc_id} {grade}" for q, row in grades.items() for doc_id, grade in row.items()))


def request_row(query_id: str, texts: Mapping[str, str], query: str = "") -> dict[str, Any]:
    """A row of a request file: texts by doc_id in the order of the first stage, whose scores fall from 9."""
    candidates = [
        {"docid": doc_id, "score": 9.0 - rank, "doc": {"contents": text}}
        for rank, (doc_id, text) in enumerate(texts.items())
    ]
    return {"query": {"text": query or f"what is {query_id}", "qid": query_id}, "candidates": candidates}


def write_requests(path: Path, texts: Mapping[str, Mapping[str, str]]) -> Path:
    """A request file: for each query, texts by doc_id in the order of the first stage."""
    return write(path, *(request_row(query_id, row) for query_id, row in texts.items()))


def judged_collection(
    folder: Path,
    corpus: Path | Mapping[str, str] | None,
    queries: Mapping[str, str],
    grades: Grades,
    split: str = "test",
) -> Path:
    """A folder in BEIR layout. `corpus`: a corpus.jsonl to link, or texts by doc_id; None: queries alone."""
    write(folder / "queries.jsonl", *({"_id": query_id, "text": text} for query_id, text in queries.items()))
    judged = (f"{q}\t{doc_id}\t{grade}" for q, row in grades.items() for doc_id, grade in row.items())
    write(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore", *judged)
    if isinstance(corpus, Path):
        (folder / "corpus.jsonl").symlink_to(corpus)
    elif corpus is not None:
        write(folder / "corpus.jsonl", *({"_id": doc_id, "text": text} for doc_id, text in corpus.items()))
    return folder


def graded_requests(folder: Path, grades: Grades, asked: Iterable[str] | None = None) -> list[str]:
    """Flags of a request file whose texts have their grades, which the model "number" sorts by, and of judgements.

    Args:
        asked: queries in the request file; None: all of them.
    """
    texts = {q: {doc_id: f"relevance {grade}" for doc_id, grade in grades[q].items()} for q in asked or grades}
    requests, qrels = write_requests(folder / "requests.jsonl", texts), write_qrels(folder / "qrels.txt", grades)
    return ["--requests", str(requests), "--qrels", str(qrels)]


def write_run(path: Path, docs: Mapping[str, Sequence[str]]) -> Path:
    """A TREC run: doc_ids by query, best first."""
    return write(path, *(f"{q} Q0 {d} {rank} {-rank} t" for q, row in docs.items() for rank, d in enumerate(row)))


def call(command: partial[None], out: Path, *options: object) -> Result:
    """Calls an evaluation command, which writes into `out`."""
    return CliRunner().invoke(command.args[0], ["--out", str(out), *map(str, options)])


def evaluate(command: partial[None], out: Path, *options: object) -> str:
    """The output of an evaluation command that succeeds."""
    done = call(command, out, *options)
    assert done.exit_code == 0, done.output
    return done.output


def refusal(command: partial[None], out: Path, *options: object) -> str:
    """The message of an error that ends an evaluation command."""
    done = call(command, out, *options)
    assert done.exception is not None, done.output
    assert type(done.exception).__module__.startswith("rerank."), done.exception
    return str(done.exception)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
