"""`rerank index` and `rerank serve`: what they build, and errors of one line."""

import shutil
import socket
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from rerank.client.client import RerankClient
from rerank.commands import service
from rerank.config import ServiceConfig
from rerank.retrieval.index import read_manifest
from tests.conftest import PASSAGES
from tests.eval.data import write
from tests.fakes import NumberRanker
from tests.serving import running_service


def test_index_is_built_and_never_overwritten(rerank, beir_folder, tmp_path):
    out = tmp_path / "index"
    built = rerank("index", "--collection", beir_folder, "--out", out, "--device", "cpu")
    assert (built.code, built.err) == (0, "")
    assert f"12 passages of {beir_folder.name}" in built.out.replace("\n", " ")
    assert read_manifest(out).passages == len(PASSAGES)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = rerank("index", "--collection", beir_folder, "--out", out, "--device", "cpu")
    assert again.error == f"{out} exists already; remove it first or choose another folder"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_verify_names_the_damaged_file(rerank, index_folder, tmp_path):
    copy = Path(shutil.copytree(index_folder, tmp_path / "copy"))
    whole = rerank("verify", copy)
    assert (whole.code, whole.err) == (0, "")
    assert "files are as they were built" in whole.out.replace("\n", " ")
    (copy / "vectors.npy").write_bytes(b"")
    assert rerank("verify", copy).error.startswith(f"{copy / 'vectors.npy'} is damaged: it has 0 bytes, but manifest")


def test_duplicate_doc_id_of_a_corpus_is_refused_with_both_lines(rerank, tmp_path):
    rows = [{"_id": "1", "text": "a"}, "", {"_id": "2", "text": "b"}, {"_id": "1", "text": "c"}]
    write(tmp_path / "corpus.jsonl", *rows)
    error = rerank("index", "--collection", tmp_path, "--out", tmp_path / "index", "--device", "cpu").error
    assert error == "passage 2: doc_id '1' occurs twice in the collection; it is on the lines 1, 4"


def test_check_finds_usable_settings_and_loads_nothing(rerank, tmp_path):
    keys = tmp_path / "keys.yaml"
    rerank("keys", "add", "a", "--keys", keys)
    (config := tmp_path / "config.yaml").write_text("models: [{name: a, ranker: identity}]\nlisten: 0.0.0.0:0\n")
    outcome = rerank("serve", "--check", "--config", config, "--keys", keys, "--http", "--qrels", "pydoc")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.strip() == "the settings can be used: 1 models at 0.0.0.0:0"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (["--http", "127.0.0.1:8099"], "127.0.0.1:8099"),
        (["--http=127.0.0.1:8099"], "127.0.0.1:8099"),
        (["--http"], "127.0.0.1:8080"),
        (["--http", "--check"], "127.0.0.1:8080"),
    ],
)
def test_http_may_have_an_address(rerank, monkeypatch, given, address):
    checked: list[ServiceConfig] = []
    monkeypatch.setattr("rerank.service.startup.check_before_loading", lambda config, binds: checked.append(config))
    monkeypatch.setattr("rerank.reranking.reranker.check_models", lambda config: None)
    assert rerank("serve", "--check", *given).code == 0
    (config,) = checked
    assert config.http.listen == address


def test_taken_port_is_replaced_by_a_free_one():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = service._free_port(port)
        assert other != port
        socket.create_server(("127.0.0.1", other)).close()
    assert service._free_port(port) == port


def test_demo_shows_the_windows_of_first_in_the_terminal_and_beside_the_default_in_the_page(index, capsys):
    rankers = {"first": NumberRanker(max_window_size=20)}
    with running_service(rankers, index) as served, RerankClient(served.address) as client:
        service._show_first(client)
    printed = capsys.readouterr()
    assert "its windows over the same candidates" in printed.err
    header, *windows, best, execution = printed.out.strip().splitlines()
    assert header.startswith("window\tBM25 ranks that it reads\tin its order")
    assert windows
    for number, line in enumerate(windows, start=1):
        place, read, ordered, _ = line.split("\t")
        assert int(place) == number
        assert sorted(read.split(", ")) == sorted(ordered.split(", "))
    assert best.startswith("its first three: ")
    assert execution.startswith("first, sliding(")
    fragment = parse_qs(service._compared())
    assert (fragment["a.model"], fragment["b.model"], fragment["b.strategy"]) == (["default"], ["first"], ["sliding"])
    assert fragment["compare"] == ["1"]
