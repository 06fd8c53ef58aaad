#!/usr/bin/env bash
# Evaluates public checkpoints as their figures were published: on BM25's top-100, with the sliding schedule 20/10.
#
#   scripts/reproduce_published.sh SYSTEM CHECKPOINT TEMPLATE DATA OUT
#
# SYSTEM      first-mistral, rank-zephyr or pe-rank
# CHECKPOINT  folder of castorini/first_mistral, castorini/rank_zephyr_7b_v1_full or liuqi6777/pe-rank-mistral-jina
# TEMPLATE    YAML file that the publisher trained it with (RankLLM: rank_llm/rerank/prompt_templates); pe-rank: ''
# DATA        folder with trec-dl-YEAR/{requests.jsonl,qrels.txt}
# OUT         folder for the results; a run that was stopped resumes in it
# ENCODER     environment variable, for pe-rank: folder of the encoder that it was trained with
#
# Published nDCG@10. FirstMistral and RankZephyr: RankLLM's reproduction files; PE-Rank: figure 1 of its repository.
# Different versions of the libraries change these figures by up to .008.
#                 DL19   DL20   DL21   DL22   DL23
# first-mistral  .7294  .7043  .6849  .4893  .4470
# rank-zephyr    .7365  .7080  .7016  .5152  .4373
# pe-rank        .7048
set -euo pipefail

if [ $# -ne 5 ]; then
  sed -n '2,19s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
system=$1 checkpoint=$2 template=$3 data=$4 out=$5
python=${PYTHON:-.venv/bin/python}

case $system in
  first-mistral) ranker=first expected="2019=.7294 2020=.7043 2021=.6849 2022=.4893 2023=.4470" ;;
  rank-zephyr) ranker=generation expected="2019=.7365 2020=.7080 2021=.7016 2022=.5152 2023=.4373" ;;
  pe-rank) ranker=pe-rank expected="2019=.7048" ;;
  *) echo "SYSTEM $system is none of first-mistral, rank-zephyr, pe-rank" >&2; exit 2 ;;
esac

found=0
for pair in $expected; do
  year=${pair%=*}
  folder=$data/trec-dl-$year
  if [ ! -f "$folder/qrels.txt" ]; then
    echo "DL $year: no $folder/qrels.txt, skipped"
    continue
  fi
  found=1
  "$python" -m rerank_eval.trec_dl --requests "$folder/requests.jsonl" --qrels "$folder/qrels.txt" \
    --system "$system=$ranker:$checkpoint" --template "$template" \
    --strategy sliding --window-size 20 --stride 10 --encoder "${ENCODER:-}" --out "$out/$system-$year"
  echo "DL $year: published ${pair#*=}, here $("$python" -c '
import json, sys
print(round(json.load(open(sys.argv[1]))["mean"]["nDCG@10"], 4))' "$out/$system-$year/measures.json")"
done
if [ $found -eq 0 ]; then
  echo "$data holds no trec-dl-YEAR/qrels.txt" >&2
  exit 2
fi
