"""Collections in BEIR layout."""

import gzip
from pathlib import Path

import pytest

from rerank.collections import beir, open_collection
from rerank.errors import CollectionError
from rerank.readers.qrels import Qrel
from rerank.types import Query
from tests.eval.data import write


def write_corpus(folder: Path, *lines: object) -> str:
    return str(write(folder / "corpus.jsonl", *lines).parent)


def test_title_and_text_are_joined(tmp_path):
    lines = {"_id": 1, "title": "T", "text": "x"}, "", {"_id": "2", "text": "y"}, {"_id": "3", "title": "", "text": ""}
    passages = list(open_collection(write_corpus(tmp_path, *lines)).passages())
    assert [(p.doc_id, p.text) for p in passages] == [("1", "T x"), ("2", "y"), ("3", "")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ('{"_id": "1"}', r'has no text \(or segment, contents, .*; found _id; expected a line as {"_id": '),
        ('{"sku": "1", "text": "no id"}', r"has no doc_id \(or _id, docid, id\); found sku, text; expected a line as"),
        ('{"_id": "1", "title": 7, "text": "t"}', "has 7 as title; give a string"),
    ],
)
def test_bad_passage_is_named_when_it_is_read(tmp_path, line, problem):
    """Among the first lines when the collection is opened, before a model is loaded; later ones when they are read."""
    fine = [f'{{"_id": "{number}", "text": "fine"}}' for number in range(200)]
    with pytest.raises(CollectionError, match=rf"corpus\.jsonl:3 {problem}"):
        open_collection(write_corpus(tmp_path, *fine[:2], line))
    collection = open_collection(write_corpus(tmp_path, *fine, line))
    with pytest.raises(CollectionError, match=rf"corpus\.jsonl:201 {problem}"):
        list(collection.passages())


def test_other_fields_are_ignored_and_one_without_an_id_is_refused(tmp_path):
    collection = open_collection(write_corpus(tmp_path, '{"_id": 7, "text": "b", "title": "N", "price": 1}'))
    assert [(p.doc_id, p.text) for p in collection.passages()] == [("7", "N b")]
    assert collection.lines_of("7") == [1]
    with pytest.raises(CollectionError, match=r"jsonl:1 has no doc_id \(or _id, docid, id\); found sku, text"):
        open_collection(write_corpus(tmp_path, '{"sku": 7, "text": "b"}'))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_queries_and_qrels(tmp_path, compress):
    end = "" if compress is bytes else ".gz"
    (tmp_path / "qrels").mkdir()
    (tmp_path / f"qrels/dev.tsv{end}").write_bytes(compress(b"query-id\tcorpus-id\tscore\n1\ta b\t1\n"))
    (tmp_path / f"queries.jsonl{end}").write_bytes(compress(b'{"_id": "1", "text": "why"}\n'))
    collection = open_collection(write_corpus(tmp_path, '{"_id": "a b", "text": "x"}'))
    assert collection.qrels("dev") == [Qrel("1", "a b", 1)]
    assert collection.queries() == beir.queries(tmp_path) == [Query("why", "1")]
    with pytest.raises(CollectionError, match=r"there is no .*qrels/test\.tsv; it has the splits dev"):
        collection.qrels("test")


@pytest.mark.parametrize("row", ["my%20q 0 https://x.example/a%20flea 2", "my%20q\thttps://x.example/a%20flea\t2"])
def test_judged_ids_have_the_form_of_the_collection(tmp_path, row):
    """A known id always means itself, also where white space separates the columns and %20 is a space."""
    write(tmp_path / "qrels/test.tsv", row)
    write(tmp_path / "queries.jsonl", {"_id": "my%20q", "text": "why"})
    collection = open_collection(write_corpus(tmp_path, '{"_id": "https://x.example/a%20flea", "text": "x"}'))
    assert collection.qrels("test") == [Qrel("my%20q", "https://x.example/a%20flea", 2)]


@pytest.mark.parametrize("end", ["", ".gz"])
def test_file_of_passages_or_queries_stands_for_its_folder(tmp_path, end):
    """A file's name is the collection's; queries and judgements are next to it."""
    packed = gzip.compress if end else bytes
    (folder := tmp_path / "mine").mkdir()
    for name in (f"corpus.jsonl{end}", f"cats.jsonl{end}"):
        (folder / name).write_bytes(packed(b'{"_id": "1", "text": "x"}'))
    (folder / f"queries.jsonl{end}").write_bytes(packed(b'{"_id": "q", "text": "why"}'))
    write(folder / "qrels" / "test.tsv", "q\t1\t2")
    by_folder = open_collection(str(folder))
    for name, expected in ((f"corpus.jsonl{end}", "mine"), (f"cats.jsonl{end}", "cats")):
        found = open_collection(str(folder / name))
        assert (found.name, found.queries()) == (expected, [Query("why", "q")])
        assert found.qrels("test") == [Qrel("q", "1", 2)]
        assert [passage.doc_id for passage in found.passages()] == ["1"]
        assert found.fingerprint() == by_folder.fingerprint()
    assert by_folder.name == "mine"
    (lines := tmp_path / "queries.tsv").write_text("q\twhy\n")
    assert beir.queries(lines) == beir.queries(folder) == beir.queries(folder / f"queries.jsonl{end}")
    assert beir.qrels_file(folder / f"queries.jsonl{end}", "test") == folder / "qrels" / "test.tsv"


def test_what_is_no_collection_is_told_what_can_be_one(tmp_path):
    (tmp_path / "corpus.csv").write_text("1,x")
    forms = r"give 'pydoc', a folder with a corpus\.jsonl or corpus\.tsv, or a file whose name ends in \.jsonl or \.tsv"
    for path, problem in (
        (tmp_path, r"the folder has no corpus\.jsonl"),
        (tmp_path / "corpus.csv", "the file's name has another ending"),
        (tmp_path / "none", "there is no such folder or file"),
    ):
        with pytest.raises(CollectionError, match=f"{problem}; {forms}"):
            open_collection(str(path))
    with pytest.raises(CollectionError, match=r"no such folder or file \(relative paths begin at"):
        open_collection("none")


@pytest.mark.parametrize("id_name", ["_id", "id", "docid", "doc_id"])
@pytest.mark.parametrize("text_name", ["text", "contents", "passage", "segment", "content", "body"])
def test_passages_of_other_programs_are_read_by_the_names_that_they_use(tmp_path, id_name, text_name):
    row = {id_name: 7, "title": "T", text_name: "x", "price": 1}
    (passage,) = open_collection(write_corpus(tmp_path, row)).passages()
    assert (passage.doc_id, passage.text, passage.title) == ("7", "T x", "T")


def test_id_and_text_of_the_layout_are_preferred_to_other_fields(tmp_path):
    row = '{"_id": "1", "id": "a row of a database", "text": "x", "body": "y"}'
    assert [(p.doc_id, p.text) for p in open_collection(write_corpus(tmp_path, row)).passages()] == [("1", "x")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1\tx y\n\n2\tz\n", [("1", "x y"), ("2", "z")]),
        ("id\ttext\ttitle\n1\tx\tT\n", [("1", "T x")]),  # as of DPR
        ("docid\turl\ttitle\tbody\n1\tu\tT\tx\n", [("1", "T x")]),
    ],
)
@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_columns_with_tabs_are_passages_with_and_without_their_names(tmp_path, packed, content, expected):
    path = tmp_path / ("corpus.tsv" if packed is bytes else "corpus.tsv.gz")
    path.write_bytes(packed(content.encode()))
    (tmp_path / "queries.tsv").write_text("q\twhy\n")
    for opened in (open_collection(str(tmp_path)), open_collection(str(path))):
        assert [(passage.doc_id, passage.text) for passage in opened.passages()] == expected
        assert opened.queries() == [Query("why", "q")]
        assert opened.name == tmp_path.name


def test_line_with_other_columns_shows_the_one_that_is_expected(tmp_path):
    (tmp_path / "corpus.tsv").write_text("1\tx\n2\ty\tz\n")
    with pytest.raises(CollectionError, match=r"tsv:2 has 3 columns, and not _id, text; expected a line as 7, tab, An"):
        open_collection(str(tmp_path))


def test_collection_without_queries_or_judgements_names_their_forms(tmp_path):
    collection = open_collection(write_corpus(tmp_path, '{"_id": "1", "text": "x"}'))
    with pytest.raises(CollectionError, match=r'has no queries: there is no queries\.jsonl, .*"_id".*queries\.tsv'):
        collection.queries()
    with pytest.raises(CollectionError, match=r"no judgements of the split 'test': there is no .*test\.tsv; a line is"):
        collection.qrels("test")
    write(tmp_path / "qrels" / "dev.tsv", "q\t1\t1")
    with pytest.raises(CollectionError, match=r"it has the splits dev; a line is query_id, tab, doc_id"):
        collection.qrels("test")
