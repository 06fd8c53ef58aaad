#!/usr/bin/env bash
# Trains the bundled checkpoints from the shared data folder.
#
#   scripts/reproduce/defaults.sh SHARED_DATA OUT [pe_rank | first]
#
# SHARED_DATA holds trec-dl-2021/{requests.jsonl,splade-pp.jsonl,qrels.txt}, trec-dl-2022/{requests,splade-pp}.jsonl and
# medquad/qa.jsonl.gz.
# Judgements and queries of TREC DL 2019 are read nowhere.
# The commands of the environment (.venv/bin) must be on PATH; run it from the repository's root.
set -euo pipefail

data=$(realpath "${1:?folder with the shared data}")
out=$(realpath -m "${2:?folder to create}")
which=${3:-pe_rank}

# Every build-lists computes its vectors again, which takes most of the time; the training takes some minutes.
pe_rank() {
  local lists=$out/lists/pe_rank dl21=$data/trec-dl-2021
  mkdir -p "$lists"
  head -n 40 "$dl21/requests.jsonl" > "$lists/train-requests.jsonl"
  tail -n 13 "$dl21/requests.jsonl" > "$lists/held-out-requests.jsonl"
  # The same lists in the orders of the two first stages.
  for order in first-stage cosine; do
    build-lists --requests "$lists/train-requests.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels --order $order \
      --passages 5-20 --lists-per-query 30 --name dl21 --out "$lists/labels-$order.jsonl"
    build-lists --requests "$lists/train-requests.jsonl" --teacher fusion --order $order \
      --passages 5-20 --lists-per-query 30 --name dl21 --seed 1 --out "$lists/fusion-$order.jsonl"
    build-lists --requests "$data/trec-dl-2022/requests.jsonl" --teacher fusion --order $order --depth 20 \
      --passages 5-20 --lists-per-query 10 --name dl22 --seed 5 --out "$lists/dl22-$order.jsonl"
  done
  build-lists --requests "$lists/held-out-requests.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels --passages 20 \
    --lists-per-query 12 --name dl21 --seed 3 --out "$lists/held-out.jsonl"
  cat "$lists"/{fusion,dl22,labels}-first-stage.jsonl "$lists"/{fusion,dl22,labels}-cosine.jsonl > "$lists/train.jsonl"
  rerank checkpoint zero-init --out "$out/pe-rank-zero"
  train-pe-rank --base "$out/pe-rank-zero" --lists "$lists/train.jsonl" --eval-lists "$lists/held-out.jsonl" \
    --rank-loss weighted-ranknet --text-weight 0 --kl-weight 0 --window-size 20 --min-window-size 5 \
    --shuffled-share 0 --learning-rate 2e-4 --warmup-steps 20 --max-steps 300 --per-device-train-batch-size 32 \
    --seed 7 --eval-steps 100 --save-steps 100 --per-device-eval-batch-size 32 --output-dir "$out/pe-rank"
  # A share of .45 of the training: all of it ranks web passages better and other passages worse (docs/evidence/log.md).
  rerank checkpoint pack "$out/pe-rank/final" --start "$out/pe-rank-zero" --share 0.45 \
    --out "$out/pe_rank_minilm"
  rerank checkpoint golden "$out/pe_rank_minilm"
}

# Takes some five hours on one core with AVX512-BF16, in stages of growing windows, with the code that trained it: its lists
# need sources that later code does not have.
first() {
  local code=$out/code
  [ -d "$code" ] || git worktree add --detach "$code" 447ce27
  cd "$code"
  PYTHONPATH=$code:$code/training scripts/reproduce/defaults.sh "$data" "$out" first
}

"$which"
