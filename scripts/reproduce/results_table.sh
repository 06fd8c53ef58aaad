#!/usr/bin/env bash
# Prints the table of docs/evidence/results.md in Markdown: every bundled system on TREC DL 2019 and on Cranfield.
#
#   scripts/reproduce/results_table.sh DATA OUT
#
# DATA   folder with trec-dl-2019/{requests.jsonl,qrels.txt} and cranfield/ in BEIR layout
# OUT    folder for the results, outside the repository; a call that was stopped resumes in it
# DEPTH  environment variable: number of candidates per query of Cranfield; default 30
#
# Takes about an hour on two cores: most of it for the windows of FIRST, and for the texts of TREC DL 2019, which each
# system encodes anew.
set -euo pipefail

if [ $# -ne 2 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
data=$1 out=$2 depth=${DEPTH:-30}
python=${PYTHON:-.venv/bin/python}
first=$("$python" -c 'from rerank.checkpoints import bundled; print(bundled.FIRST)')
trec=$data/trec-dl-2019 cranfield=$data/cranfield
for file in "$trec/requests.jsonl" "$trec/qrels.txt" "$cranfield/corpus.jsonl"; do
  [ -f "$file" ] || { echo "$file does not exist; DATA needs it" >&2; exit 2; }
done

systems=(--model cosine --model z-score --model PE-Rank=pe-rank --model "FIRST=first:$first" --model default)

mkdir -p "$out"
if [ ! -f "$out/index/manifest.json" ]; then
  "$python" -m rerank.commands.cli index --collection "$cranfield" --out "$out/index" >&2
fi
"$python" -m rerank_eval.trec_dl --requests "$trec/requests.jsonl" --qrels "$trec/qrels.txt" "${systems[@]}" \
  --out "$out/dl19" >&2
"$python" -m rerank_eval.beir --collection "$cranfield" --index "$out/index" --first-stage bm25 --depth "$depth" \
  "${systems[@]}" --out "$out/cranfield" >&2
"$python" -m rerank_eval.beir --collection "$cranfield" --index "$out/index" --first-stage hybrid-z-score --depth "$depth" \
  --model PE-Rank=pe-rank --out "$out/hybrid" >&2

"$python" -m rerank_eval.table "TREC DL 2019=$out/dl19" "Cranfield, BM25=$out/cranfield" "Cranfield, hybrid=$out/hybrid"
