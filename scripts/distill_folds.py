"""`distill-retriever` in two folds: trains on half of a collection's queries, measures the other half, and vice versa.

python scripts/distill_folds.py --collection cranfield --index indexes/cranfield --out runs/folds \
    --list_size 8 --text_tokens 48 --num_train_epochs 2 --per_device_train_batch_size 4 --learning_rate 4e-4

Flags that are not its own go to distill-retriever. A call that was killed goes on when it is given again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rerank_training.distill_retriever import REPORT
from rerank_training.retriever_evaluation import Change, Measured, changes

from rerank.collections.requests import Qrel, read_beir_qrels

FOLDS = ("odd", "even")


def write_folds(collection: Path, out: Path) -> None:
    """A folder of queries whose judgements are in two halves: the queries of qrels/test.tsv, taken in turn."""
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(collection / "queries.jsonl", out / "queries.jsonl")
    qrels = read_beir_qrels(collection)
    judged = list(dict.fromkeys(qrel.query_id for qrel in qrels))
    for number, fold in enumerate(FOLDS):
        mine = set(judged[number :: len(FOLDS)])
        rows = ["query-id\tcorpus-id\tscore", *(_row(qrel) for qrel in qrels if qrel.query_id in mine)]
        (out / "qrels" / f"{fold}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def pooled(reports: Sequence[Path]) -> dict[str, Change]:
    """The change over the held-out queries of all folds, of which each was measured once."""
    held_out = [json.loads(path.read_text(encoding="utf-8"))["held_out"] for path in reports]
    before, after = ([part[when] for part in held_out] for when in ("before", "after"))
    return changes(_joined(before), _joined(after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, required=True, help="folder in BEIR layout")
    parser.add_argument("--index", type=Path, required=True, help="what `rerank index` made of it")
    parser.add_argument("--out", type=Path, required=True, help="folder of both runs")
    given, flags = parser.parse_known_args()
    queries = given.out / "queries"
    write_folds(given.collection, queries)
    for fold in FOLDS:
        if not (given.out / fold / REPORT).exists():
            own = {"index": given.index, "queries": queries, "held_out": fold, "output_dir": given.out / fold}
            options = [f"--{name}={value}" for name, value in own.items()]
            subprocess.run([sys.executable, "-m", "rerank_training.distill_retriever", *options, *flags], check=True)
    for name, change in pooled([given.out / fold / REPORT for fold in FOLDS]).items():
        print(f"both folds  {name:8} {change.before:.4f} → {change.after:.4f}, p = {change.p:.2g} (paired t-test)")


def _row(qrel: Qrel) -> str:
    return f"{qrel.query_id}\t{qrel.doc_id}\t{qrel.relevance}"


def _joined(parts: Sequence[Measured]) -> Measured:
    return {name: {key: value for part in parts for key, value in part[name].items()} for name in parts[0]}


if __name__ == "__main__":
    main()
