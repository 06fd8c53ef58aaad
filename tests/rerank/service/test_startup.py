"""Start of the service: checks before a model is loaded, and the description of what runs."""

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rerank.access.keys import CallerLimits, add_key
from rerank.checkpoints import bundled
from rerank.config import ServiceConfig, load_config
from rerank.config.encoder import EncoderConfig
from rerank.config.named import named_model
from rerank.errors import ConfigError, IndexMismatch
from rerank.reranking.reranker import check_models
from rerank.retrieval.index_format import FORMAT
from rerank.service.startup import check_before_loading, overlooked_models
from tests.certificates import Authority

#: Needs no package that brings a model.
IDENTITY = {"models": [{"name": "identity", "ranker": "identity"}]}
BASE = {"listen": "127.0.0.1:0"}


@pytest.fixture
def check(tmp_path: Path) -> Callable[[dict[str, Any]], None]:
    """Checks settings as a file gives them, and what they name."""

    def check(settings: dict[str, Any]) -> None:
        (tmp_path / "service.yaml").write_text(yaml.safe_dump(BASE | settings))
        check_before_loading(load_config(tmp_path / "service.yaml"))

    return check


@pytest.mark.parametrize(("name", "option"), [("listen", "--listen"), ("http", "--http")])
def test_address_in_use_is_refused_before_models_are_loaded(name, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = {"listen": "127.0.0.1:0", name: f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(ConfigError, match=f"cannot listen on .*; choose another {option} HOST:PORT"):
            check_before_loading(load_config(None, **addresses))
        check_before_loading(load_config(None, **addresses), binds=False)  # `--check` with a running service


@pytest.mark.parametrize("listen", ["[::]:0", "0.0.0.0:0"])
def test_address_that_others_reach_needs_keys_client_certificates_or_consent(listen, tmp_path):
    files = Authority(tmp_path / "ca").issue("server")
    keys, tls = tmp_path / "keys.yaml", files.tls
    add_key(keys, "a", CallerLimits())
    for open_to_all in ({}, {"tls": tls}):
        with pytest.raises(
            ConfigError, match=rf"listen {re.escape(listen)}: anyone .* could call the service; require"
        ):
            check_before_loading(ServiceConfig.model_validate({"listen": listen} | open_to_all))
    for guarded in ({"keys": keys}, {"insecure": True}, {"tls": tls | {"client_ca": files.certificate}}):
        check_before_loading(ServiceConfig.model_validate(IDENTITY | {"listen": listen} | guarded))


def test_http_address_is_guarded_too():
    with pytest.raises(ConfigError, match=r"^http 0\.0\.0\.0:0: anyone"):
        check_before_loading(ServiceConfig.model_validate({"listen": "127.0.0.1:0", "http": "0.0.0.0:0"}))


def test_bundled_model_that_is_replaced_is_named(tmp_path):
    mine = Path(shutil.copytree(bundled.FIRST, tmp_path / "pe-rank-first"))
    config = load_config(None, [named_model(f"pe-rank-first={mine}")])
    assert list(overlooked_models(config.models))[1:] == [
        f"model pe-rank-first: {mine} replaces the bundled model of this name (first in a cascade after pe-rank); "
        "under another name, such as my-pe-rank-first, both would be served"
    ]
    (line,) = overlooked_models(
        load_config(None, models=[{"name": "identity", "ranker": "first", "path": mine}]).models
    )
    assert line.startswith(f"model identity: {mine} replaces the bundled model of this name (identity)")


def test_first_model_beside_another_default_is_named():
    (line,) = overlooked_models(load_config(None, [named_model(f"fus={bundled.FIRST}")]).models)
    assert line.startswith("model fus answers requests that do not name a model, and another one those that name `def")


def test_sparse_encoder_is_checked_if_a_model_reads_it(check, tmp_path):
    missing = {"sparse_encoder": str(tmp_path / "missing")}
    with pytest.raises(ConfigError, match=r"sparse_encoder: there is no folder .*missing; give one"):
        check(model("fusion") | missing)
    check(model("fusion", sparse_weight=0.0) | missing)
    check(IDENTITY | missing)


def model(ranker: str = "first", **settings: object) -> dict[str, Any]:
    return {"models": [{"name": "mine", "ranker": ranker, **settings}]}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (model(path="nowhere"), "model mine: there is no folder nowhere (relative paths begin at the working dir"),
        (model(template="nowhere.yaml"), "model mine: template 'nowhere.yaml' is neither a file nor one of e2rank, "),
        (model(served_by={"kind": "vllm", "url": "http://x", "model": "m"}, path="/nowhere"), "no folder /nowhere"),
        ({"index": "nowhere"}, "nowhere is not an index: it has no manifest.json (relative paths begin at"),
        ({"encoder": "./nowhere"}, "encoder: there is no folder ./nowhere (relative paths begin at"),
        ({"encoder": "\u043a"}, "there is no folder \u043a"),
        ({"encoder": "all-MiniLM-L6-v2\n"}, "encoder.* begins or ends with white space"),
        ({"keys": "nowhere"}, "keys: nowhere cannot be read: No such file or directory (relative paths begin at"),
        ({"tls": {"certificate": "nowhere", "key": "nowhere"}}, "tls: nowhere cannot be read: No such file"),
        ({"http": {"listen": "127.0.0.1:0", "qrels": "nowhere"}}, "--qrels nowhere: there is no such folder"),
        ({"listen": "x" * 100 + ".org:1"}, "cannot listen on xxx"),
    ],
)
def test_path_that_leads_nowhere_is_refused(tmp_path, monkeypatch, check, settings, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, IndexMismatch), match=problem.replace("(", r"\(").replace("?", r"\?")) as caught:
        check(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=\u043a", r"_HEADERS has the character U\+043A"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=a\n", "_TRACES_HEADERS begins or ends with white space"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere\n", r"_CERTIFICATE: '/nowhere\\n' cannot be read: No such file"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/nowhere", "_TRACES_CLIENT_KEY: /nowhere cannot be read: No such"),
    ],
)
def test_variables_of_the_traces_are_checked_if_they_are_on(monkeypatch, check, variable, value, problem):
    monkeypatch.setenv(variable, value)
    check(IDENTITY)
    with pytest.raises(ConfigError, match=f"^the environment variable .*{problem}") as caught:
        check(IDENTITY | {"telemetry": {"traces": True}})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "package", "problem"),
    [
        ({"http": "127.0.0.1:0"}, "uvicorn", "http needs uvicorn{}http"),
        (
            {"telemetry": {"metrics": "127.0.0.1:0"}},
            "prometheus_client",
            "telemetry.metrics needs prometheus_client{}observability",
        ),
        ({"telemetry": {"traces": True}}, "opentelemetry", "telemetry.traces needs opentelemetry.sdk{}observability"),
    ],
)
def test_package_that_is_missing_is_named_before_models_are_loaded(monkeypatch, check, settings, package, problem):
    """Metrics and traces were missed after the models had been loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=problem.format(r", which is not installed; install .*\[") + r"\]"):
        check(IDENTITY | settings)


def test_check_finds_an_index_of_another_encoder(index_folder):
    config = ServiceConfig.model_validate(BASE | model("identity") | {"index": str(index_folder)})
    check_models(config)
    with pytest.raises(IndexMismatch, match="was built with encoder"):
        check_models(config.model_copy(update={"encoder": EncoderConfig(query_prompt="query: ")}))


def test_index_whose_files_are_missing_or_cut_is_refused(check, index_folder, tmp_path):
    index = Path(shutil.copytree(index_folder, tmp_path / "index"))
    check({"index": str(index)})
    os.truncate(index / "vectors.npy", 200)
    with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it has 200 bytes"):
        check({"index": str(index)})
    (index / "vectors.npy").unlink()
    with pytest.raises(IndexMismatch, match=r"vectors\.npy is damaged: it is missing"):
        check({"index": str(index)})
    (index / "manifest.json").write_text(f'{{"format": "{FORMAT}", "files": {{"a": 3}}}}')
    with pytest.raises(IndexMismatch, match=r"manifest\.json is damaged"):
        check({"index": str(index)})


def test_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(check, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for settings in ({"keys": str(pipe)}, {"tls": {"certificate": str(pipe), "key": str(pipe)}}):
        with pytest.raises(ConfigError, match="pipe cannot be read: it is a pipe or a device, not a file"):
            check(settings)
