#!/usr/bin/env bash
# Prints the table of docs/results.md in Markdown: every bundled system on TREC DL 2019 and on Cranfield.
#
#   scripts/results_table.sh DATA OUT
#
# DATA   folder with trec-dl-2019/{requests.jsonl,qrels.txt} and cranfield/ in BEIR layout
# OUT    folder for the results, outside the repository; a call that was stopped resumes in it
# DEPTH  environment variable: number of candidates per query of Cranfield; default 30
#
# Takes about an hour on two cores, most of it for FIRST. In the row of generation, the checkpoint of FIRST generates the
# permutation of one window of ten passages. It was not trained for that: the row shows the cost of generation, not its
# quality.
set -euo pipefail

if [ $# -ne 2 ]; then
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
data=$1 out=$2 depth=${DEPTH:-30}
python=${PYTHON:-.venv/bin/python}
trec=$data/trec-dl-2019 cranfield=$data/cranfield
for file in "$trec/requests.jsonl" "$trec/qrels.txt" "$cranfield/corpus.jsonl"; do
  [ -f "$file" ] || { echo "$file does not exist; DATA needs it" >&2; exit 2; }
done
first=$("$python" -c 'from rerank.bundled import FIRST; print(FIRST)')

systems=(--system BM25=identity --system cosine=cosine --system fusion=z-score --system PE-Rank=pe-rank
  --system FIRST.sliding=first/sliding --system FIRST.top-down=first/top-down
  --system PE-Rank.FIRST=first/cascade --preranker PE-Rank --system "FIRST.writes=generation/single:$first")

mkdir -p "$out"
if [ ! -f "$out/index/manifest.json" ]; then
  "$python" -m rerank.commands.cli index --collection "$cranfield" --out "$out/index" >&2
fi
"$python" -m rerank_eval.trec_dl --requests "$trec/requests.jsonl" --qrels "$trec/qrels.txt" "${systems[@]}" \
  --no-plots --out "$out/dl19" >&2
"$python" -m rerank_eval.beir --collection "$cranfield" --index "$out/index" --first-stage bm25 --depth "$depth" \
  "${systems[@]}" --no-plots --out "$out/cranfield" >&2
"$python" -m rerank_eval.beir --collection "$cranfield" --index "$out/index" --first-stage hybrid-z-score --depth "$depth" \
  --system hybrid=identity --system hybrid.PE-Rank=pe-rank --feedback --no-plots --out "$out/hybrid" >&2

"$python" -m rerank_eval.table "TREC DL 2019=$out/dl19" \
  "Cranfield=$out/cranfield" "Cranfield=$out/hybrid" "Cranfield=$out/hybrid/feedback"
