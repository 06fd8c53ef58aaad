# shellcheck shell=bash
# Training: a base that does not exist, the saves of a short run, and the name under which its model is served.

# Without any flag about saves, and into a folder with the name of a bundled model.
short_run=(train-first --lists lists.jsonl --eval-lists lists-held-out.jsonl --base "$bundled" --output-dir runs/first
  --use-cpu true --per-device-train-batch-size 1 --max-steps 2 --report-to none)

train_a_short_run() {
  output_has "serve it: rerank serve --model default=runs/first/final" "${short_run[@]}"
  grep -qE "step +1/2 +nDCG@10" output
  if grep -q "UserWarning" output; then echo "newcomer: the saves warn"; return 1; fi
  [[ -d runs/first/checkpoint-1 && -d runs/first/checkpoint-2 ]]
}

step "a base that does not exist" fails_with "no folder gpt2-nope, .*(cannot be reached|OFFLINE is set|no such model)" \
  timeout 300 train-first --lists lists.jsonl --base gpt2-nope --output-dir runs/nope
step "an encoder that does not exist" fails_with "no folder org/nope, .*(cannot be reached|OFFLINE is set|no such model)" \
  timeout 300 rerank serve --listen 127.0.0.1:0 --encoder org/nope
step "a short run with saves" train_a_short_run
step "serve it instead of a bundled model" start_service --model identity=runs/first/final
step "the log says what it replaces" grep -q "replaces the bundled model of this name (identity)" serve.log
step "the golden scores of the others are compared" bash -c "! grep -q 'not compared' serve.log"
step "stop the service" stop_service
