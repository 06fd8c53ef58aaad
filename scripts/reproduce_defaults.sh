#!/usr/bin/env bash
# Trains the bundled checkpoints from the shared data folder.
#
#   scripts/reproduce_defaults.sh SHARED_DATA OUT [pe_rank | first]
#
# SHARED_DATA holds trec-dl-2021/{requests.jsonl,qrels.txt}, trec-dl-2022/requests.jsonl and medquad/qa.jsonl.gz.
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
  python scripts/make_pe_rank_checkpoint.py --out "$out/pe-rank-zero"
  train-pe-rank --base "$out/pe-rank-zero" --lists "$lists/train.jsonl" --eval-lists "$lists/held-out.jsonl" \
    --rank-loss weighted-ranknet --text-weight 0 --kl-weight 0 --window-size 20 --min-window-size 5 \
    --shuffled-share 0 --learning-rate 2e-4 --warmup-steps 20 --max-steps 300 --per-device-train-batch-size 32 \
    --seed 7 --eval-steps 100 --save-steps 100 --per-device-eval-batch-size 32 --report-to none --output-dir "$out/pe-rank"
  # A share of .45 of the training: all of it ranks web passages better and other passages worse (docs/log.md).
  python scripts/pack_checkpoint.py "$out/pe-rank/final" --start "$out/pe-rank-zero" --share 0.45 \
    --out "$out/pe_rank_minilm"
  python scripts/write_golden.py "$out/pe_rank_minilm"
}

# Takes some four hours on one core. Each stage increases one thing: number, length and similarity of the passages.
# With the probe loss (training/rerank_training/first/objective.py), the first stage takes 60 steps instead of 250.
first() {
  local lists=$out/lists/first runs=$out/runs passages=$out/lists/first/passages
  mkdir -p "$lists" "$runs"
  head -n 41 "$data/trec-dl-2021/requests.jsonl" | cat - "$data/trec-dl-2022/requests.jsonl" > "$lists/requests.jsonl"
  tail -n +42 "$data/trec-dl-2021/requests.jsonl" > "$lists/held-out-requests.jsonl"
  python scripts/requests_to_collection.py --out "$passages" \
    "$data/trec-dl-2021/requests.jsonl" "$data/trec-dl-2022/requests.jsonl"
  local sentences="build-lists --collection $passages --queries sentences --name dlc"
  $sentences --teacher qrels --passages 4 --random-share 1 --passage-words 15 --out "$lists/four.jsonl"
  $sentences --teacher qrels --passages 6-10 --random-share 1 --passage-words 12 --seed 1 --out "$lists/ten.jsonl"
  $sentences --teacher qrels --passages 4-10 --random-share 1 --passage-words 36 --remove-share 0.5 \
    --out "$lists/long.jsonl"
  $sentences --teacher cosine --passages 4-10 --depth 30 --random-share 0.5 --order random --passage-words 40 \
    --remove-share 0.5 --limit 6000 --out "$lists/alike.jsonl"
  build-lists --requests "$lists/requests.jsonl" --teacher fusion --passages 10 --lists-per-query 40 \
    --passage-words 50 --name dl --out "$lists/fusion.jsonl"
  build-lists --medquad "$data/medquad/qa.jsonl.gz" --teacher cosine --passages 10 --depth 40 --random-share 0.3 \
    --order random --passage-words 40 --limit 2500 --name medquad --out "$lists/medquad.jsonl"
  build-lists --requests "$lists/held-out-requests.jsonl" --qrels "$data/trec-dl-2021/qrels.txt" --teacher qrels \
    --passages 10 --lists-per-query 6 --passage-words 50 --name dl21 --out "$lists/held-out.jsonl"
  build-lists --requests "$lists/held-out-requests.jsonl" --qrels "$data/trec-dl-2021/qrels.txt" --teacher qrels \
    --order random --passages 10 --lists-per-query 6 --passage-words 50 --name dl21 --out "$lists/held-out-random.jsonl"
  cat "$lists"/held-out{,-random}.jsonl > "$lists/held-out-both.jsonl"
  head -n 41 "$data/trec-dl-2021/requests.jsonl" > "$lists/judged-requests.jsonl"
  build-lists --requests "$lists/judged-requests.jsonl" --qrels "$data/trec-dl-2021/qrels.txt" --teacher qrels \
    --passages 10 --lists-per-query 40 --passage-words 50 --seed 2 --name dl21 --out "$lists/labels.jsonl"
  part() { tail -n "+$(($2 + 1))" "$lists/$1.jsonl" | head -n "$3"; }  # part FILE SKIPPED LINES
  { part ten 150 1500; part long 150 3000; part alike 150 1500; } > "$lists/mixed.jsonl"
  { part fusion 0 9999; part medquad 0 1300; part alike 1650 1300; part long 3150 800; part ten 1650 500; } \
    > "$lists/graded.jsonl"
  cat "$lists"/{graded,labels}.jsonl > "$lists/more.jsonl"

  python scripts/make_first_base.py --out "$runs/base"
  stage() {  # stage NAME BASE LISTS HELD-OUT STEPS FLAGS…
    train-first --output-dir "$runs/$1" --base "$2" --lists "$lists/$3.jsonl" --eval-lists "$lists/$4.jsonl" \
      --max-steps "$5" --template first_small --objective rank --probe-weight 1 --freeze-token-embeddings true \
      --report-to none "${@:6}"
  }
  part four 0 10900 > "$lists/four-train.jsonl"; part four 10986 200 > "$lists/four-held-out.jsonl"
  part ten 0 150 > "$lists/ten-held-out.jsonl"; part ten 150 99999 > "$lists/ten-train.jsonl"
  part long 0 150 > "$lists/long-held-out.jsonl"
  local steady="--lr-scheduler-type constant_with_warmup --learning-rate 3e-4 --shuffled-share 1"
  stage four "$runs/base" four-train four-held-out 60 $steady --window-size 4 --passage-tokens 20 \
    --per-device-train-batch-size 16 --warmup-steps 20 --save-steps 60 --eval-steps 60
  stage ten "$runs/four/final" ten-train ten-held-out 40 $steady --window-size 10 --min-window-size 6 \
    --passage-tokens 18 --per-device-train-batch-size 12 --warmup-steps 10 --save-steps 40 --eval-steps 40
  stage mixed "$runs/ten/final" mixed long-held-out 100 $steady --window-size 10 --min-window-size 5 \
    --passage-tokens 48 --per-device-train-batch-size 6 --warmup-steps 10 --save-steps 50 --eval-steps 50
  stage graded "$runs/mixed/final" graded held-out 320 --lr-scheduler-type cosine --learning-rate 2.5e-4 \
    --shuffled-share 0 --window-size 10 --min-window-size 8 --passage-tokens 48 --per-device-train-batch-size 5 \
    --warmup-steps 10 --save-steps 80 --eval-steps 80
  local long="--lr-scheduler-type cosine --learning-rate 2.5e-4 --shuffled-share 0.5 --window-size 10
    --min-window-size 8 --passage-tokens 48 --per-device-train-batch-size 5 --warmup-steps 10"
  stage more "$runs/graded/final" more held-out-both 900 $long --seed 5 --data-seed 5 --save-steps 150 --eval-steps 150
  stage again "$runs/more/final" more held-out-both 900 $long --seed 6 --data-seed 6 --save-steps 150 --eval-steps 150
  # The mean of the last two stages' weights has a higher held-out nDCG than either of them.
  python scripts/pack_checkpoint.py "$runs/again/final" --start "$runs/more/final" --share 0.5 --out "$out/first_minilm"
  python scripts/write_golden.py "$out/first_minilm"
}

"$which"
