"""Runs `distill-retriever` in two folds: trains on half of a collection's queries and evaluates the other half.

python scripts/distill_folds.py --collection cranfield --index indexes/cranfield --out runs/folds \
    --list-size 8 --text-tokens 48 --num-train-epochs 2 --per-device-train-batch-size 4 --learning-rate 4e-4

Unknown flags are passed to distill-retriever. A killed call resumes when it is given again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rerank_training.retriever.distillation import REPORT
from rerank_training.retriever.evaluation import Change, Measured, changes

from rerank.collections import beir
from rerank.readers.qrels import Qrel

FOLDS = ("odd", "even")


def write_folds(collection: Path, out: Path) -> None:
    """Writes a folder of queries with two judgement files, to which the queries of qrels/test.tsv alternate."""
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(collection / "queries.jsonl", out / "queries.jsonl")
    qrels = beir.qrels(collection)
    judged = list(dict.fromkeys(qrel.query_id for qrel in qrels))
    for number, fold in enumerate(FOLDS):
        fold_queries = set(judged[number :: len(FOLDS)])
        rows = ["query-id\tcorpus-id\tscore", *(_row(qrel) for qrel in qrels if qrel.query_id in fold_queries)]
        (out / "qrels" / f"{fold}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def pooled(reports: Sequence[Path]) -> dict[str, Change]:
    """The change over the held-out queries of all folds; every query is held out in one of them."""
    held_out = [json.loads(path.read_text(encoding="utf-8"))["held_out"] for path in reports]
    before, after = ([part[when] for part in held_out] for when in ("before", "after"))
    return changes(_joined(before), _joined(after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, required=True, help="Folder in BEIR layout.")
    parser.add_argument(
        "--index", type=Path, required=True, help="Folder written by `rerank index` for the collection."
    )
    parser.add_argument("--out", type=Path, required=True, help="Folder for both runs.")
    given, flags = parser.parse_known_args()
    queries = given.out / "queries"
    write_folds(given.collection, queries)
    for fold in FOLDS:
        if not (given.out / fold / REPORT).exists():
            paths = {"index": given.index, "queries": queries, "held-out": fold, "output-dir": given.out / fold}
            options = [f"--{name}={value}" for name, value in paths.items()]
            subprocess.run([sys.executable, "-m", "rerank_training.distill_retriever", *options, *flags], check=True)
    for name, change in pooled([given.out / fold / REPORT for fold in FOLDS]).items():
        print(f"both folds  {name:8} {change.before:.4f} → {change.after:.4f}, p = {change.p:.2g} (paired t-test)")


def _row(qrel: Qrel) -> str:
    return f"{qrel.query_id}\t{qrel.doc_id}\t{qrel.relevance}"


def _joined(parts: Sequence[Measured]) -> Measured:
    return {name: {key: value for part in parts for key, value in part[name].items()} for name in parts[0]}


if __name__ == "__main__":
    main()
