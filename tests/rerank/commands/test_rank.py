"""`rerank rank` with passages on the command line: no file, no service, and mistakes that a newcomer makes."""

import json
import re
from pathlib import Path

import pytest
import typer

from rerank.commands.example import EXAMPLE_PASSAGES, EXAMPLE_QUERY
from rerank.commands.rank import candidates_file
from rerank.config import BUNDLED_MODELS, ServiceConfig
from rerank.reranking.blocking import Reranker
from rerank.types import RankOptions

PASSAGES = ("Deserts are dry.", "A flea lives a year.")


@pytest.mark.slow
def test_example_has_its_answers_first_and_says_the_time(rerank):
    done = rerank("rank", "--example")
    assert done.code == 0
    head, *rows = done.out.splitlines()
    title, last = done.err.splitlines()
    assert title == "how long does a flea live"
    assert head.split("\t")[:2] == ["rank", "was"]
    assert rows[0].startswith("1\t6\t")
    assert {row.rpartition("\t")[2] for row in rows[:3]} == set(EXAMPLE_PASSAGES[1::2])
    assert len(rows) == len(EXAMPLE_PASSAGES)
    assert re.fullmatch(r"default: ranked in [\d,]+ ms, after the model was loaded in [\d.]+ s; .*", last), last


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_each_bundled_model_has_the_answers_of_the_example_first(precision):
    models = []
    for model in BUNDLED_MODELS:
        if model.ranker != "identity":
            has_precision = "precision" in type(model).model_fields
            changes = {"load": "start"} | ({"precision": precision} if has_precision else {})
            models.append(model.model_copy(update=changes))
    with Reranker(ServiceConfig(models=tuple(models))) as reranker:
        for model in models:
            options = RankOptions(model=model.name, ordered=False)
            ranked = reranker.rerank(EXAMPLE_QUERY, EXAMPLE_PASSAGES, options).ranked
            assert {item.passage.text for item in ranked[:3]} == set(EXAMPLE_PASSAGES[1::2]), model.name


@pytest.mark.slow
def test_encoder_of_the_command_line_is_used(rerank):
    done = rerank("rank", "--example", "--model", "pe-rank", "--encoder", "no/such/encoder")
    assert done.code != 0
    assert "no/such/encoder" in done.err
    named = rerank("rank", "--example", "--model", "pe-rank", "--encoder", "sentence-transformers/all-MiniLM-L6-v2")
    assert named.code == 0


@pytest.mark.parametrize("place", [["--target", "127.0.0.1:1"], ["--batch", "requests.jsonl", "--out", "out.jsonl"]])
def test_encoder_is_refused_where_a_service_ranks(rerank, place):
    query = [] if place[0] == "--batch" else ["--example"]
    done = rerank("rank", *query, *place, "--encoder", "any")
    assert (done.code, "--encoder is for a model in this process" in done.err) == (2, True)


@pytest.mark.slow
def test_order_of_the_passages_has_no_effect(rerank):
    first, second = (
        rerank("rank", "--query", "how long does a flea live", *given, "--model", "pe-rank", "--json").json["results"]
        for given in (PASSAGES, PASSAGES[::-1])
    )
    assert [result["text"] for result in first] == [result["text"] for result in second] == list(PASSAGES[::-1])
    assert [result["score"] for result in first] == pytest.approx([result["score"] for result in second])


def test_empty_query_is_refused_before_a_model_is_loaded(rerank, monkeypatch):
    monkeypatch.setattr("rerank.reranking.blocking.load_reranker", None)
    assert "query" in rerank("rank", "--query", " ", *PASSAGES).error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--query", "q"), "give passages as texts, a file of candidates (- for standard input), or --example"),
        (("x", "y"), 'give --query "…", or --example'),
        (("--example", "--query", "q"), "--example brings a query and passages"),
        (("--query", "q", "x", "--batch", "requests.jsonl"), "or --batch and --out"),
    ],
)
def test_flags_that_do_not_fit_are_refused(rerank, args, message):
    refused = rerank("rank", *args)
    assert refused.code == 2
    assert message in " ".join(refused.err.split())


def test_existing_file_is_told_from_passages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "candidates.jsonl").touch()
    assert candidates_file(["candidates.jsonl"]) == Path("candidates.jsonl")
    assert candidates_file(["-"]) == Path("-")
    for text in ("flea", "[a]", "TCP/IP", "end.", "see notes.txt in the folder", "x" * 5000, "a\0b"):
        assert candidates_file([text]) is None
    assert candidates_file(["", "x"]) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nothing.jsonl"], "'nothing.jsonl' looks like a file, and there is no file of this name .relative paths"),
        (["a passage", "lists.json.gz"], "'lists.json.gz' looks like a file"),
        (["./candidates"], "looks like a file"),
        (["."], ". is a folder; give a file of candidates"),
        (["candidates.jsonl", "other.jsonl"], "candidates.jsonl is a file; give it alone"),
        (["a passage", "-"], "- is a file; give it alone"),
    ],
)
def test_file_in_the_place_of_a_passage_is_named(tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "candidates.jsonl").touch()
    with pytest.raises(typer.BadParameter, match=message):
        candidates_file(given)


def test_file_and_texts_are_ranked_without_a_service_and_by_the_one_at_target(rerank, service, tmp_path):
    """One rule for both; the deadline counts in this process, too."""
    file = tmp_path / "candidates.jsonl"
    file.write_text("".join(json.dumps({"id": text, "text": text}) + "\n" for text in PASSAGES), encoding="utf-8")
    for given in ([str(file)], PASSAGES):
        for where in ([], ["--target", service.address]):
            asked = ["rank", "--query", "q", *given, "--model", "identity", *where]
            found = rerank(*asked, "--json").json["results"]
            assert {result["text"] for result in found} == set(PASSAGES)
            assert "deadline" in rerank(*asked, "--timeout-s", "0").error
