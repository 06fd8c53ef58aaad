#!/usr/bin/env bash
# Measures rerankers over the TREC DL 2019 lists of several first stages, and plots what they gain against its quality.
#
#   scripts/first_stages.sh DATA OUT [FLAG …]
#
# DATA  folder with trec-dl-2019/{requests.jsonl,qrels.txt}, the lists of BM25, and trec-dl-2019-first-stages/*.jsonl,
#       those of other first stages, in the same form
# OUT   folder for the results and first-stages.svg, outside the repository; a call that was stopped resumes in it
# FLAG  flags of eval-trec-dl, at least one system; default: --ranker pe-rank --ranker default
#
# Prints the table of docs/results.md in Markdown. The first 100 candidates are reranked. Five lists take an hour on two
# cores without a GPU: the texts are encoded anew for each system.
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
data=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- --ranker pe-rank --ranker default
python=${PYTHON:-.venv/bin/python}
bm25=$data/trec-dl-2019/requests.jsonl qrels=$data/trec-dl-2019/qrels.txt others=$data/trec-dl-2019-first-stages
for file in "$bm25" "$qrels" "$others"; do
  [ -e "$file" ] || { echo "$file does not exist; DATA needs it" >&2; exit 2; }
done

folders=()
for requests in "$bm25" "$others"/*.jsonl; do
  name=$(basename "$requests" .jsonl)
  [ "$requests" != "$bm25" ] || name=bm25
  "$python" -m rerank_eval.trec_dl --requests "$requests" --qrels "$qrels" --depth 100 --ranker identity "$@" \
    --no-plots --out "$out/$name" >&2
  folders+=("$name=$out/$name")
done
"$python" "$(dirname "$0")/first_stages.py" "${folders[@]}" --plot "$out/first-stages.svg"
