#!/usr/bin/env bash
# Compares ordered and unordered lists: what the order of a first stage is worth, and what a shuffled one costs.
#
#   scripts/ordered_lists.sh DATA OUT      # DATA has the folders cranfield and trec-dl-2021; about half an hour
#
# The first 50 candidates of each query, without scores: Cranfield and pydoc from an index by hybrid-rrf, TREC DL 2021
# from BM25 (the 18 queries that no bundled model was trained on). The default model ranks 60 queries of each collection.
set -euo pipefail
data=$1 out=$2
queries=60
mkdir -p "$out"

# first_stage NAME COLLECTION: a run of the collection's hybrid-rrf list, and one of some of its queries.
first_stage() {
  [[ -d $out/$1.index ]] || rerank index --collection "$2" --out "$out/$1.index"
  eval-beir --collection "$2" --index "$out/$1.index" --depth 50 --ranker identity --no-plots --out "$out/$1.first-stage"
  cp "$out/$1.first-stage/run.trec" "$out/$1.trec"
  python - "$out/$1.trec" "$queries" >"$out/$1-sample.trec" <<'PYTHON'
import random
import sys

with open(sys.argv[1], encoding="utf-8") as run:
    lines = run.read().splitlines()
query_ids = sorted({line.split()[0] for line in lines})
sample = set(random.Random(0).sample(query_ids, int(sys.argv[2])))
print("\n".join(line for line in lines if line.split()[0] in sample))
PYTHON
}

# compare NAME RANKER ARGUMENTS...: the ranker over the first stage's order, a shuffled one, and none.
compare() {
  local name=$1 ranker=$2
  shift 2
  eval-trec-dl "$@" --ranker "$ranker" --depth 50 --orders original,shuffled:1,unordered --without-scores --only-asked \
    --no-plots --out "$out/$name.$ranker"
}

cranfield=(--collection "$data/cranfield" --index "$out/cranfield.index")
pydoc=(--collection pydoc --index "$out/pydoc.index")
dl=(--requests "$out/dl-2021.jsonl" --qrels "$data/trec-dl-2021/qrels.txt")
first_stage cranfield "$data/cranfield"
first_stage pydoc pydoc
tail -n 18 "$data/trec-dl-2021/requests.jsonl" >"$out/dl-2021.jsonl"

compare cranfield pe-rank --requests "$out/cranfield.trec" "${cranfield[@]}"
compare pydoc pe-rank --requests "$out/pydoc.trec" "${pydoc[@]}"
compare dl-2021 pe-rank "${dl[@]}"
compare dl-2021 default "${dl[@]}"
compare cranfield default --requests "$out/cranfield-sample.trec" "${cranfield[@]}"
compare pydoc default --requests "$out/pydoc-sample.trec" "${pydoc[@]}"
