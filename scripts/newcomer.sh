#!/usr/bin/env bash
# Walks through search, training and evaluation as a new user would, in a fresh environment that has the wheel.
#
#   scripts/newcomer.sh           # takes the dependencies of the environment of PYTHON (.venv): some minutes
#   FULL=1 scripts/newcomer.sh    # installs the dependencies from the package index: gigabytes
#
# Prints one line for each step. The first step that fails ends the script with its output and exit code 1.
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
python=$(realpath -s "${PYTHON:-$checkout/.venv/bin/python}")
work=$(mktemp -d -t rerank-newcomer.XXXXXX)
service=
clean_up() {
  if [[ -n $service ]]; then
    kill "$service" 2>/dev/null || true
    wait "$service" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap clean_up EXIT
# Outside the checkout, so that nothing is imported from there.
cd "$work"
unset PYTHONPATH
export PATH=$work/venv/bin:$PATH

# step NAME COMMAND...: runs the command, with its output in the file `log`.
step() {
  local name=$1 start=$SECONDS
  shift
  if ! "$@" >log 2>&1; then
    printf 'FAILED  %s: %s\n' "$name" "$*"
    cat log
    exit 1
  fi
  printf 'ok  %3d s  %s\n' $((SECONDS - start)) "$name"
}

# output_has PATTERN COMMAND...: runs the command, whose output must match the pattern.
output_has() {
  local pattern=$1
  shift
  "$@" >output 2>&1 || { cat output; return 1; }
  cat output
  grep -qE "$pattern" output || { echo "newcomer: the output lacks: $pattern"; return 1; }
}

install_wheel() {
  if [[ -n ${WHEEL:-} ]]; then
    cp "$WHEEL" .
  else
    (cd "$checkout" && "$python" -m hatchling build -t wheel -d "$work")
  fi
  if [[ -n ${FULL:-} ]]; then
    "$python" -m venv venv
    venv/bin/pip install -q -c "$checkout/constraints.txt" "$(ls "$work"/*.whl)[cpu,offline,train,eval]"
  else
    "$python" -m venv --without-pip venv
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >dependencies.pth
    mv dependencies.pth venv/lib/python*/site-packages/
    "$python" -m pip --python venv/bin/python install -q --no-deps --no-index --no-compile ./*.whl
  fi
  (python -c 'import rerank; print(rerank.__file__)' | grep "^$work/venv/")
}

# A collection in BEIR layout: 40 animals with three sentences each, and ten judged queries.
write_collection() {
  python - <<'PYTHON'
import json
from pathlib import Path

animals = "flea cat dog owl bat bee ant eel fox hen yak elk cow pig ram asp cod crab crow dove"
animals = animals.split() + "duck frog goat hare hawk ibex kiwi lark lion lynx mole moth newt puma seal slug swan toad wasp wolf".split()
places = ["the forest", "the desert", "the sea", "a farm", "the mountains"]
foods = ["grass", "insects", "fruit", "seeds", "fish", "leaves", "roots"]
folder = Path("collection")
(folder / "qrels").mkdir(parents=True)
with (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
    for number, animal in enumerate(animals):
        place, food = places[number % len(places)], foods[number % len(foods)]
        text = (
            f"The {animal} is an animal that lives in {place}. Every {animal} eats {food} in the morning. "
            f"A {animal} reaches an age of {number + 1} years."
        )
        print(json.dumps({"_id": f"d{number}", "title": animal.capitalize(), "text": text}), file=corpus)
with (folder / "queries.jsonl").open("w", encoding="utf-8") as queries, (folder / "qrels/test.tsv").open("w") as qrels:
    print("query-id\tcorpus-id\tscore", file=qrels)
    for number, animal in enumerate(animals[:10]):
        print(json.dumps({"_id": f"q{number}", "text": f"how long does a {animal} live"}), file=queries)
        print(f"q{number}\td{number}\t1", file=qrels)
with open("candidates.jsonl", "w", encoding="utf-8") as candidates:
    for doc_id, text in {"d1": "Deserts are dry.", "d2": "A flea lives a year."}.items():
        print(json.dumps({"doc_id": doc_id, "text": text}), file=candidates)
PYTHON
}

# Starts the service on a free port, in the background, and sets `address` once it answers.
start_service() {
  rm -f serve.log  # of the service before, whose address would be found in it
  rerank serve --listen 127.0.0.1:0 "$@" >serve.log 2>&1 &
  service=$!
  for _ in {1..600}; do
    address=$(grep -soE -m 1 'listening on 127\.0\.0\.1:[0-9]+' serve.log | grep -oE '127.*' || true)
    if [[ -n $address ]]; then return; fi
    kill -0 "$service" 2>/dev/null || break
    sleep 0.2
  done
  cat serve.log
  return 1
}

stop_service() {
  local stopped=$service
  service=
  kill "$stopped"
  wait "$stopped" || { cat serve.log; return 1; }
}

call_client() {
  python - "$address" <<'PYTHON'
import sys

from rerank import RerankClient

with RerankClient(sys.argv[1]) as client:
    reply = client.rerank("how long does a flea live", [("d1", "Deserts are dry."), ("d2", "A flea lives a year.")])
    print([(result.doc_id, result.score) for result in reply.results])
    assert reply.results[0].doc_id == "d2"
PYTHON
}

# Kills the training as soon as its second save begins; the first one is complete by then.
train_until_second_save() {
  "${train[@]}" &
  local training=$!
  until [[ -n $(compgen -G "run/*checkpoint-2*") ]]; do
    kill -0 "$training" || return 1
    sleep 0.1
  done
  kill -KILL "$training"
  wait "$training" || true
  [[ ! -e run/final ]]
}

step "environment from the wheel" install_wheel
step "small collection" write_collection

step "example" output_has "ranked in [0-9,]+ ms, after the model was loaded in" rerank rank --example
step "passages of the command line" output_has "^1.2.*A flea lives a year" rerank rank --query "how long does a flea live" \
  "Deserts are dry." "A flea lives a year."

step "index" rerank index --collection collection --out index
step "serve" start_service --index index
step "search" output_has d0 rerank search "how long does a flea live" --top-n 3 --target "$address"
step "rank" output_has d2 rerank rank --query "how long does a flea live" candidates.jsonl --target "$address"
step "Python client" call_client
step "stop the service" stop_service

bundled=$(python -c 'from rerank.checkpoints.bundled import FIRST; print(FIRST)')
train=(train-first --lists lists.jsonl --eval-lists lists-held-out.jsonl --base "$bundled" --output-dir run --use-cpu true
  --per-device-train-batch-size 2 --max-steps 4 --logging-steps 1 --save-steps 1 --eval-steps 1)
step "training lists" build-lists --collection collection --split test --teacher qrels --passages 4 \
  --held-out-share 0.2 --out lists.jsonl
step "train, and kill the run" train_until_second_save
step "resume" output_has "[Rr]esum" "${train[@]}"

step "serve the trained model" start_service --index index --model default=run/final
step "rank with it" output_has d2 rerank rank --query "how long does a flea live" candidates.jsonl --model default \
  --target "$address"
step "evaluate it" output_has nDCG eval-beir --collection collection --target "$address" --first-stage bm25 --depth 10 \
  --model identity --model default --out results
step "report" test -s results/report.md
step "stop the service" stop_service

echo "All steps passed in $SECONDS s"
