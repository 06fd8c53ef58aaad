# shellcheck shell=bash
# Ordered and unordered lists, empty queries and negative numbers of results.

printf '%s\n' '{"doc_id": "a", "text": "A flea lives a year."}' '{"doc_id": "b", "text": "Deserts are dry."}' \
  '{"doc_id": "c", "text": "A flea lives a year."}' >equal.jsonl
tac equal.jsonl >reversed.jsonl

# same_scores FILE...: the results of all files, sent as unordered lists, have the same doc_ids and scores.
same_scores() {
  local file
  for file in "$@"; do
    rerank rank --unordered --query "how long does a flea live" --model pe-rank --target "$address" --json "$file" |
      python -c 'import json, sys; print([(row["doc_id"], row["score"]) for row in json.load(sys.stdin)["results"]])'
  done >scores
  cat scores
  [[ $(sort -u scores | wc -l) == 1 ]]
}

rank_in_process() {
  python - <<'PYTHON'
from rerank import InvalidRequest, Reranker

documents = ["A flea lives a year.", "Deserts are dry.", "A flea lives a year."]
with Reranker("pe-rank") as reranker:
    first, second, third = reranker.rank("how long does a flea live", documents, ordered=False)
    assert (first["corpus_id"], second["corpus_id"]) == (0, 2), (first, second)
    assert first["score"] == second["score"] > third["score"]
    for wrong, name in ((dict(query="q", top_k=-1), "top_k"), (dict(query=""), "query")):
        try:
            reranker.rank(documents=documents, **wrong)
        except InvalidRequest as error:
            assert str(error).startswith(f"{name}: "), error
        else:
            raise AssertionError(f"{wrong} was not refused")
PYTHON
}

step "unordered lists" same_scores equal.jsonl reversed.jsonl
step "an empty query" fails_with "query: the query is empty" rerank rank --query " " equal.jsonl --target "$address"
step "a negative number of results" fails_with "top_n: -1 is negative" rerank rank --top-n -1 --query "a query" \
  equal.jsonl --target "$address"
step "unordered lists in process" rank_in_process
