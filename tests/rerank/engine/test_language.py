"""Texts in other languages are told from English ones, and English ones, names and code are told from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.collections import open_collection
from rerank.engine.language import foreign_language, language_warning
from rerank.readers.queries import read_queries
from rerank.readers.requests import read_requests

#: English queries that a search engine gets, with the words of other languages that occur in them.
ENGLISH = """
die hard 2
das boot movie
la la land soundtrack
van gogh starry night
who was charles de gaulle
leonardo da vinci the last supper
de facto standard
tour de france
coq au vin recipe
what does déjà vu mean
meaning of c'est la vie
übermensch nietzsche
el salvador la libertad
β-carotene
∂f/∂x of f(x, y)
12 34
SELECT * FROM der WHERE das = 1 AND ist IS NULL
def und(der, ist): return die.nicht(ein)
df.groupby("wie").agg({"ist": sum})
TypeError: 'NoneType' object is not subscriptable
https://de.wikipedia.org/wiki/Die_nicht_und_ist
""".strip().splitlines()

OTHERS = [
    ("wie lange lebt ein Floh", "German"),
    ("Was ist der Unterschied zwischen HTTP und HTTPS?", "German"),
    ("warum ist der Himmel blau", "German"),
    ("combien de temps vit une puce", "French"),
    ("quelle est la capitale de la France", "French"),
    ("cuál es la capital de Francia", "Spanish"),
    ("quanto vive una pulce in media", "Italian"),
    ("quanto tempo vive uma pulga", "Portuguese"),
    ("hoe lang leeft een vlo", "Dutch"),
    ("jaka jest stolica Francji", "Polish"),
    ("bir pire ne kadar yaşar", "Turkish"),
    ("vad är huvudstaden i Frankrike", "Swedish"),
    ("сколько живёт блоха", "Cyrillic script"),
    ("πόσο ζει ένας ψύλλος", "Greek"),
    ("كم يعيش البرغوث", "Arabic script"),
    ("कितने समय तक पिस्सू", "Indic script"),
    ("跳蚤能活多久", "Chinese"),
    ("ノミはどのくらい生きますか", "Japanese"),
    ("벼룩은 얼마나 사나요", "Korean"),
]
GERMAN = ["Flöhe leben je nach Art zwei bis drei Monate.", "Die Wüste ist trocken und heiß."]


@pytest.mark.parametrize("query", ENGLISH)
def test_english_query_name_or_code_is_no_other_language(query: str) -> None:
    assert foreign_language(query, []) == ("", "")


def test_queries_and_passages_of_pydoc_are_english() -> None:
    collection = open_collection("pydoc")
    texts = [passage.text for passage in collection.passages()][::7]
    groups = [texts[start : start + 5] for start in range(0, len(texts), 5)]
    assert {foreign_language(query.text, []) for query in collection.queries()} == {("", "")}
    assert {foreign_language("x", group) for group in groups} == {("", "")}


@pytest.mark.shared
def test_queries_and_candidates_of_the_benchmarks_are_english(shared: Path) -> None:
    found = {foreign_language(each.text, []) for each in read_queries(shared / "cranfield" / "queries.jsonl")}
    for request in read_requests(shared / "trec-dl-2019" / "requests.jsonl"):
        texts = [candidate.text or "" for candidate in request.candidates]
        found |= {foreign_language(request.query.text, texts[start:]) for start in range(0, len(texts), 5)}
    assert found == {("", "")}


@pytest.mark.parametrize(("query", "language"), OTHERS)
def test_query_in_another_language_is_told(query: str, language: str) -> None:
    assert foreign_language(query, ["Fleas live for a year."]) == ("query", language)


@pytest.mark.parametrize("query", ["Lebensdauer Floh", "flea"])
def test_query_without_frequent_words_is_told_by_the_documents(query: str) -> None:
    assert foreign_language(query, GERMAN) == ("documents", "German")
    assert foreign_language(query, ["跳蚤能活多久", "沙漠是干燥的"]) == ("documents", "Chinese")


@pytest.mark.parametrize(("query", "passages"), [("", []), ("", [""]), (" ", ["\n"]), ("x" * 10**6, ["y" * 10**6])])
def test_empty_and_long_texts_tell_nothing(query: str, passages: list[str]) -> None:
    assert foreign_language(query, passages) == ("", "")


def test_beginnings_of_the_query_and_of_the_first_passages_are_read() -> None:
    assert foreign_language("a " * 150 + "wie lange lebt ein Floh", []) == ("", "")
    passages = iter(GERMAN * 10)
    assert foreign_language("flea", passages) == ("documents", "German")
    assert len(list(passages)) == 15


def test_only_models_of_english_warn_and_name_what_to_serve() -> None:
    warning = language_warning("en", OTHERS[0][0], GERMAN)
    assert warning == (
        "the model reads English only, and the query seems to be in German, so that the order may be wrong; serve a "
        "multilingual model, such as the cross-encoder BAAI/bge-reranker-v2-m3, by --model NAME=FOLDER"
    )
    assert "the documents seem to be in German" in language_warning("en", "Floh", GERMAN)
    assert language_warning("", OTHERS[0][0], GERMAN) == ""
    assert language_warning("en", "flea", ["Fleas live for a year."]) == ""
