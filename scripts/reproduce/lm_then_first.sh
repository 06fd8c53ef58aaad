#!/usr/bin/env bash
# Trains the bundled FIRST further by the language model's loss and then by FIRST's, and in the opposite order.
#
#   scripts/reproduce/lm_then_first.sh DATA OUT
#
# DATA holds trec-dl-2021/{requests.jsonl,qrels.txt}, whose last 18 queries are held out. It prints both losses and nDCG@10
# on held-out lists after every training; three seeds take some 40 minutes of one core with AVX512-BF16. Run again, it
# goes on. The commands of the environment (.venv/bin) must be on PATH; run it from the repository's root.
set -euo pipefail

dl21=${1:?folder with the data}/trec-dl-2021 out=${2:?folder to create}
bundled=rerank/checkpoints/first_smollm2
mkdir -p "$out"
lists() {  # lists NAME LISTS_PER_QUERY < REQUESTS
  cat > "$out/$1-requests.jsonl"
  build-lists --requests "$out/$1-requests.jsonl" --qrels "$dl21/qrels.txt" --teacher qrels --passages 8 --order random \
    --lists-per-query "$2" --name dl21 --out "$out/$1.jsonl"
}
[ -f "$out/train.jsonl" ] || head -n 35 "$dl21/requests.jsonl" | lists train 12
[ -f "$out/held-out.jsonl" ] || tail -n 18 "$dl21/requests.jsonl" | lists held-out 2

stage() {  # stage NAME BASE SEED OBJECTIVE
  [ -d "$out/$1/final" ] || train-first --output-dir "$out/$1" --base "$2" --lists "$out/train.jsonl" --seed "$3" \
    --objective "$4" --max-steps 8 --per-device-train-batch-size 1 --gradient-accumulation-steps 4 --window-size 8 \
    --passage-tokens 24 --learning-rate 3e-4 --save-steps 8 --bf16 true
}
for seed in 1 2 3; do
  stage "$seed-lm" $bundled $seed lm
  stage "$seed-lm-first" "$out/$seed-lm/final" $seed joint
  stage "$seed-first" $bundled $seed joint
  stage "$seed-first-lm" "$out/$seed-first/final" $seed lm
done
python -m scripts.reproduce.held_out_losses --lists "$out/held-out.jsonl" $bundled "$out"/[1-3]-*/final
