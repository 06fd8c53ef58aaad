# shellcheck shell=bash
# Evaluation of a part: means, tests and the report are over the queries that were asked.

# Requests for four of the ten judged queries, and for one that nobody judged.
write_requests() {
  python - <<'PYTHON'
import json

passages = [json.loads(line) for line in open("collection/corpus.jsonl", encoding="utf-8")]
queries = [json.loads(line) for line in open("collection/queries.jsonl", encoding="utf-8")][:4]
candidates = [{"docid": row["_id"], "score": -place, "doc": row["text"]} for place, row in enumerate(passages[:10])]
with open("requests.jsonl", "w", encoding="utf-8") as requests:
    for query in [*queries, {"_id": "q99", "text": "how long does a whale live"}]:
        print(json.dumps({"query": {"qid": query["_id"], "text": query["text"]}, "candidates": candidates}), file=requests)
with open("collection/qrels/test.tsv", encoding="utf-8") as judged, open("qrels.txt", "w", encoding="utf-8") as qrels:
    for line in list(judged)[1:]:
        query_id, doc_id, grade = line.split()
        print(query_id, 0, doc_id, grade, file=qrels)
PYTHON
}

evaluate_a_part() {
  local systems=(--model oracle --model cosine --out part-results)
  output_has "4 of 10 judged queries were asked; means and tests are over these" \
    eval-trec-dl --requests requests.jsonl --qrels qrels.txt "${systems[@]}"
  grep -q "1 of 5 queries have no judgements and are not measured: q99" output
  grep -q "tests over 4 queries" part-results/report.md
  grep -qE '"queries": 4' part-results/summary.json
}

step "requests for a part of the queries" write_requests
step "evaluate a part of the judged queries" evaluate_a_part
