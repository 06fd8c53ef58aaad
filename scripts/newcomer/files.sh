# shellcheck shell=bash
# Files as people have them: other names of fields, byte order marks, gzip, titles, spaces in ids, BEIR's judgements.

write_files() {
  mkdir -p wrong/collection compressed/qrels
  # A byte order mark, Windows line ends, integer ids, _id, a title and a space in an id.
  printf '\xef\xbb\xbf{"_id": 1, "text": "Deserts are dry."}\r\n' >people.jsonl
  printf '{"id": "my file.pdf", "title": "How long a flea lives", "text": "A year."}\r\n' >>people.jsonl
  gzip -k people.jsonl
  printf '{"id": "1", "body": "Deserts are dry."}\n' >unknown.jsonl
  printf '{"sku": %d, "body": "%s", "price": 7.5}\n' 1 "Deserts are dry." 2 "A flea lives a year." >shop.jsonl
  printf '{"id": "1", "text": "Deserts are dry."}\n' >wrong/collection/corpus.jsonl
  gzip -c collection/corpus.jsonl >compressed/corpus.jsonl.gz
  gzip -c collection/queries.jsonl >compressed/queries.jsonl.gz
  gzip -c collection/qrels/test.tsv >compressed/qrels/test.tsv.gz
  printf 'query-id\tcorpus-id\tscore\nq\tmy file.pdf\t1\n' >test.tsv
  printf 'query-id\tcorpus-id\tscore\nq\tmy file.pdf\n' >wrong/test.tsv
  cat >requests.jsonl <<'JSON'
{"query": {"qid": "q", "text": "how long does a flea live"}, "candidates": [{"docid": 1, "score": 2, "doc": "Deserts are dry."}, {"docid": "my file.pdf", "score": 1, "doc": {"title": "How long a flea lives", "text": "A year."}}]}
JSON
}

# The first place of the table has the passage whose title answers the query.
title_is_first() {
  output_has $'^1\t2\t.*\tmy file.pdf\tHow long a flea lives A year' rerank rank --query "how long does a flea live" \
    "$1" --target "$address"
}

rank_in_python() {
  python - "$address" <<'PYTHON'
import sys

from rerank import RerankClient

with RerankClient(sys.argv[1]) as client:
    titled = {"_id": "my file.pdf", "title": "How long a flea lives", "text": "A year."}
    reply = client.rerank("how long does a flea live", [{"id": 1, "text": "Deserts are dry."}, titled])
    assert reply.results[0].doc_id == "my file.pdf"
    try:
        client.rerank("how long does a flea live", [{"id": 1, "body": "Deserts are dry."}])
    except TypeError as error:
        assert "has the unknown field 'body'; known are" in str(error), error
PYTHON
}

# Reports the line before a model is loaded, which takes seconds.
report_first_line() {
  fails_with "corpus.jsonl:1 has no _id; found id, text" \
    timeout 30 rerank index --collection wrong/collection --out never &&
    [[ ! -e never.partial ]]
}

evaluate=(eval-trec-dl --requests requests.jsonl --model identity --target)
lists=(build-lists --requests requests.jsonl --teacher qrels --passages 2 --out)

step "files as people have them" write_files
step "nothing is relevant enough" output_has "2 results left out by min_relevance 0.999; the best has" \
  rerank rank --query "how long does a flea live" --model pe-rank --min-relevance .999 people.jsonl --target "$address"
step "names, title, spaces, byte order mark" title_is_first people.jsonl
step "the same with gzip" title_is_first people.jsonl.gz
step "the same in Python" rank_in_python
step "other names of fields" output_has $'^1\t2\t.*\t2\t' rerank rank --query "how long does a flea live" shop.jsonl \
  --id-field sku --text-field body --target "$address"
step "further fields are ignored with a warning" grep -q "^shop.jsonl: fields that are not read: price" output
step "candidate without a text" fails_with "unknown.jsonl:1 has no text; found id, body; name the field with --text-field" \
  rerank rank --query "how long does a flea live" unknown.jsonl --target "$address"
step "evaluate with BEIR's judgements" output_has nDCG "${evaluate[@]}" "$address" --qrels test.tsv --out results-beir
step "wrong line of judgements" fails_with "test.tsv:2 has 2 columns; expected TREC's four" \
  "${evaluate[@]}" "$address" --qrels wrong/test.tsv --out never
step "lists with BEIR's judgements" output_has "1 lists" "${lists[@]}" lists-beir.jsonl --qrels test.tsv
step "wrong first line of a collection" report_first_line
step "lists from a compressed collection" output_has "10 lists" \
  build-lists --collection compressed --split test --teacher qrels --passages 2 --out lists-compressed.jsonl
