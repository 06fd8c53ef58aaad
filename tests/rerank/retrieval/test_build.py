"""Building of indexes: invalid collections, other settings, and builds that were killed at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from rerank.collections import Collection, open_collection
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.build import BuildSettings, build_index, shard_rows
from rerank.retrieval.index import Index
from rerank.retrieval.index_format import DenseKind
from rerank.types import FirstStage, Passage, Query
from rerank.util.files import sha256_of_files
from tests.conftest import PASSAGES
from tests.full_disk import largest_file, now_full
from tests.serving import wait_for

QUERY = Query("string instruments")


def collection(n: int = 40) -> Collection:
    """n short passages."""
    texts = [f"{text} {number}" for number, (_, text) in zip(range(n), [*PASSAGES.values()] * n, strict=False)]
    return Collection("short", lambda: (Passage(f"d{row}", text) for row, text in enumerate(texts)))


def test_empty_passages_are_said_with_their_number(encoder, tmp_path, caplog):
    texts = ["a flea", " \n", "a violin", ""]
    source = Collection("some", lambda: (Passage(f"d{row}", text) for row, text in enumerate(texts)))
    build_index(source, tmp_path / "index", encoder, settings=BuildSettings(workers=1))
    assert "2 of 4 passages are empty, so BM25 cannot find them; the first is 'd1'" in caplog.text
    caplog.clear()
    build_index(collection(2), tmp_path / "other", encoder, settings=BuildSettings(workers=1))
    assert "empty" not in caplog.text


class Killed(Exception):
    """Acts as the end of the process."""


def kill_at(moment: tuple[str, int], stage: str, done: int, total: int | None) -> None:
    """A progress callback that ends the build when this step has come so far."""
    if (stage, done) == moment:
        raise Killed


def contents(folder: Path) -> dict[str, str]:
    """Hashes of the files, without Lucene's, whose segments have random ids, and the manifest with its times."""
    paths = [path for path in folder.iterdir() if path.is_file() and path.name != "manifest.json"]
    return {path.name: sha256_of_files([path]) for path in paths}


@pytest.fixture(scope="module")
def undisturbed(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "index"
    build_index(collection(), out, encoder, settings=BuildSettings("hnsw", workers=1))
    return out


@pytest.mark.parametrize("moment", [("BM25", 40), ("vectors", 0), ("hnsw", 40)])
def test_killed_build_goes_on_and_gives_the_same_index(encoder, tmp_path, undisturbed, moment):
    out, settings = tmp_path / "index", BuildSettings("hnsw", workers=1)
    with pytest.raises(Killed):
        build_index(collection(), out, encoder, partial(kill_at, moment), settings)
    for thread in threading.enumerate():
        if thread.name == "lucene-indexer":  # would have ended with its process
            thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["index.partial"]
    build_index(collection(), out, encoder, settings=settings)
    assert contents(out) == contents(undisturbed)
    for first_stage in (FirstStage.BM25, FirstStage.DENSE):
        opened = [Index(folder, encoder) for folder in (out, undisturbed)]
        found, expected = (index.search(first_stage, [QUERY], 40) for index in opened)
        assert found == expected
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("moment", "name"),
    [
        (None, "passages.sqlite"),
        (("passages", 40), "index.partial"),
        (("vectors", 40), "index.partial"),
        (("hnsw", 0), "hnsw.faiss"),
    ],
)
def test_full_disk_is_named_and_the_build_goes_on_with_space(encoder, tmp_path, undisturbed, moment, name):
    out, settings = tmp_path / "index", BuildSettings("hnsw", workers=1)

    def fill_at(stage: str, done: int, total: int | None) -> None:
        if (stage, done) == moment:
            now_full(1000)

    way_out = "free disk space and give the same command again, which goes on where it stopped"
    with (
        largest_file(1_000_000 if moment else 1000),
        pytest.raises(ConfigError, match=rf"{name}.* cannot be written: .*; {way_out}$") as refused,
    ):
        build_index(collection(), out, encoder, fill_at, settings)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["index.partial"]
    build_index(collection(), out, encoder, settings=settings)
    assert contents(out) == contents(undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_disk_without_space_for_the_vectors_is_named_before_the_first_is_encoded(encoder, tmp_path, monkeypatch):
    needed = 2 * 40 * encoder.id.dimension * 4
    reports: list[str] = []

    def build() -> None:
        build_index(collection(), tmp_path / "index", encoder, lambda stage, *_: reports.append(stage))

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    message = r"the vectors of 40 passages need .* GB, and .* GB are free; free disk space"
    with pytest.raises(ConfigError, match=message):
        build()
    assert "vectors" not in reports
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    build()
    assert "vectors" in reports


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"dense": "hnsw"}, "dense flat instead of hnsw"),
        ({"encoder_dtype": "bfloat16"}, "encoder_dtype float32 instead of bfloat16"),
        ({"content": "b"}, "content a instead of b"),
    ],
)
def test_unfinished_build_with_other_settings_is_refused(encoder, tmp_path, change, difference):
    def build(dense: DenseKind = "flat", content: str = "a", **settings: str) -> None:
        passages = Collection("short", collection().passages, fingerprint=lambda: content)
        chosen = BuildSettings(dense, workers=1, **settings)  # type: ignore[arg-type]
        build_index(passages, tmp_path / "index", encoder, partial(kill_at, ("vectors", 0)), chosen)

    with pytest.raises(Killed):
        build()
    with pytest.raises(ConfigError, match=rf"index\.partial holds an unfinished index with {difference}; repeat"):
        build(**change)  # type: ignore[arg-type]


def test_changed_corpus_file_is_another_collection(encoder, tmp_path):
    corpus = tmp_path / "mine" / "corpus.jsonl"
    corpus.parent.mkdir()
    for text in ("one", "two"):
        corpus.write_text(json.dumps({"_id": "a", "text": text}), encoding="utf-8")
        mine, moment = open_collection(str(corpus.parent)), ("vectors", 0)
        with pytest.raises(Killed if text == "one" else ConfigError):
            build_index(mine, tmp_path / "index", encoder, partial(kill_at, moment))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        ([Passage("a", "x"), Passage("a", "y")], "'a' occurs twice"),
        ([Passage("a\tb", "x")], "tabs, line ends or other control characters"),
    ],
)
def test_invalid_collection_leaves_nothing(encoder, tmp_path, rows, message):
    with pytest.raises(CollectionError, match=message):
        build_index(Collection("bad", lambda: iter(rows)), tmp_path / "out", encoder)
    assert list(tmp_path.iterdir()) == []


def test_manifest_says_how_the_index_was_built(encoder, tmp_path):
    manifest = build_index(collection(), tmp_path / "out", encoder, settings=BuildSettings("hnsw", "bfloat16", 1))
    assert (manifest.dense, manifest.encoder_dtype, manifest.passages) == ("hnsw", "bfloat16", 40)
    assert manifest.dense_recall_at_100 == 1.0
    assert 0.999 < manifest.cosine_to_float32 < 1
    opened = Index(tmp_path / "out", encoder)
    assert opened.manifest == manifest
    best = opened.candidates(FirstStage.DENSE, QUERY, 1)[0]
    assert PASSAGES["violin"][1] in best.text


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended; one that has may wait for its parent to notice."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


#: Builds with two workers, and kills this process when the vectors have come so far.
_KILLED_BUILD = """
import multiprocessing, os, signal, sys
from pathlib import Path

def report(stage, done, total):
    if stage == "vectors" and done:
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":  # the workers read this file, too, and need none of these modules
    from rerank.models.encoder import Encoder
    from rerank.retrieval import build
    from tests.rerank.retrieval.test_build import collection
    build.SHARD_ROWS = 4  # many, so that the workers cannot end before the kill
    settings = build.BuildSettings("hnsw", workers=2)
    build.build_index(collection(), Path(sys.argv[1]), Encoder(device="cpu"), report, settings)
"""


@pytest.mark.slow
def test_killed_processes_leave_an_index_that_others_finish_to_the_bytes_of_one_process(
    encoder, tmp_path, undisturbed, monkeypatch
):
    """Two worker processes until the kill, then this one; and this process alone."""
    script, out = tmp_path / "build.py", tmp_path / "index"
    script.write_text(_KILLED_BUILD, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, script, out], stdout=subprocess.PIPE, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in killed.stdout.split()]
    assert len(workers) == 2
    wait_for(lambda: not any(is_running(pid) for pid in workers))
    assert 0 < len(list((tmp_path / "index.partial" / "vectors").glob("*.npz"))) < 10
    monkeypatch.setattr("rerank.retrieval.build.SHARD_ROWS", 4)
    build_index(collection(), out, encoder, settings=BuildSettings("hnsw", workers=1))
    assert contents(out) == contents(undisturbed)


@pytest.mark.parametrize(("passages", "rows"), [(1, 64), (2_000, 64), (10_000, 250), (1_000_000, 512)])
def test_progress_shows_within_the_first_shares_of_a_small_collection(passages, rows):
    """Nothing was shown before the first 512 passages, which take a minute on a small machine."""
    assert shard_rows(passages) == rows
