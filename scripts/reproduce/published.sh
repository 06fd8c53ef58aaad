#!/usr/bin/env bash
# Evaluates public checkpoints as their figures were published: on BM25's top-100, with the sliding schedule 20/10.
#
#   scripts/reproduce/published.sh SYSTEM CHECKPOINT TEMPLATE DATA OUT
#
# SYSTEM      name of a profile in rerank/profiles: first-mistral, rank-zephyr, …
# CHECKPOINT  folder of the model that the profile names
# TEMPLATE    YAML file with the publisher's prompt, whose source the profile names
# DATA        folder with trec-dl-YEAR/{requests.jsonl,qrels.txt}
# OUT         folder for the results; a run that was stopped resumes in it
# ENCODER     environment variable, for PE-Rank: folder of the encoder that it was trained with
#
# The published nDCG@10 are in the profiles. Versions of the libraries change these figures by up to .008.
set -euo pipefail

if [ $# -ne 5 ]; then
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
system=$1 checkpoint=$2 template=$3 data=$4 out=$5
python=${PYTHON:-.venv/bin/python}

published=$("$python" -c '
import sys
from rerank.profiles import load_profile, names
if sys.argv[1] not in names():
    sys.exit("SYSTEM %s is not one of %s" % (sys.argv[1], ", ".join(names())))
figures = load_profile(sys.argv[1]).figures
for collection, figure in figures.ndcg_10.items() if figures else ():
    print(f"{collection}={figure:.4f}")' "$system") || exit 2

models=$out/service.yaml  # the checkpoint as a model of a service
mkdir -p "$out"
"$python" -c '
import os, sys
import yaml
from rerank.profiles import load_profile
name, path, template = sys.argv[1:]
model = {"name": name, "ranker": load_profile(name).ranker, "profile": name, "path": path, "template": template}
encoder = {"encoder": os.environ["ENCODER"]} if os.environ.get("ENCODER") else {}
yaml.safe_dump({"models": [model], **encoder}, sys.stdout)' "$system" "$checkpoint" "$template" > "$models"

found=0
for pair in $published; do
  collection=${pair%=*}
  folder=$data/$collection
  if [ ! -f "$folder/qrels.txt" ]; then
    echo "$collection: no $folder/qrels.txt, skipped"
    continue
  fi
  found=1
  "$python" -m rerank_eval.trec_dl --requests "$folder/requests.jsonl" --qrels "$folder/qrels.txt" \
    --config "$models" --model "$system" --precision float32 --out "$out/$system-$collection"
  echo "$collection: published ${pair#*=}, here $("$python" -c '
import json, sys
print(round(json.load(open(sys.argv[1]))["mean"]["nDCG@10"], 4))' "$out/$system-$collection/measures.json")"
done
if [ $found -eq 0 ]; then
  echo "$data holds no trec-dl-YEAR/qrels.txt" >&2
  exit 2
fi
