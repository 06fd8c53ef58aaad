"""Start of the service: checks before a model is loaded, and the description of what runs."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import pytest

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.checkpoints import bundled
from rerank.config import ServiceConfig, load_config
from rerank.config.named import named_model
from rerank.errors import ConfigError
from rerank.service.startup import check_before_loading, overlooked_models
from tests.certificates import Authority

#: Needs no package that brings a model.
IDENTITY = {"models": [{"name": "identity", "ranker": "identity"}]}


@pytest.mark.parametrize(("name", "option"), [("listen", "--listen"), ("http", "--http")])
def test_address_in_use_is_refused_before_models_are_loaded(name: str, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = {"listen": "127.0.0.1:0", name: f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(ConfigError, match=f"cannot listen on .*; choose another {option} HOST:PORT"):
            check_before_loading(load_config(None, **addresses))
        check_before_loading(load_config(None, **addresses), binds=False)  # `--check` beside a running service


@pytest.mark.parametrize("listen", ["[::]:0", "0.0.0.0:0"])
def test_address_that_others_reach_needs_keys_client_certificates_or_consent(listen: str, tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").issue("server")
    keys, tls = tmp_path / "keys.yaml", {"certificate": files.certificate, "key": files.key}
    add_key(keys, "a", CallerLimits())
    for open_to_all in ({}, {"tls": tls}):
        with pytest.raises(
            ConfigError, match=rf"listen {re.escape(listen)}: anyone .* could call the service; require"
        ):
            check_before_loading(ServiceConfig.model_validate({"listen": listen} | open_to_all))
    for guarded in ({"keys": keys}, {"insecure": True}, {"tls": tls | {"client_ca": files.certificate}}):
        check_before_loading(ServiceConfig.model_validate(IDENTITY | {"listen": listen} | guarded))


def test_http_address_is_guarded_too() -> None:
    with pytest.raises(ConfigError, match=r"^http 0\.0\.0\.0:0: anyone"):
        check_before_loading(ServiceConfig.model_validate({"listen": "127.0.0.1:0", "http": "0.0.0.0:0"}))


def test_bundled_model_that_is_replaced_is_named(tmp_path: Path) -> None:
    mine = Path(shutil.copytree(bundled.FIRST, tmp_path / "pe-rank-first"))
    config = load_config(None, [named_model(f"pe-rank-first={mine}")])
    assert list(overlooked_models(config.models))[1:] == [
        f"model pe-rank-first: {mine} replaces the bundled model of this name (first in a cascade behind pe-rank); "
        "under another name, such as my-pe-rank-first, it would stand beside it"
    ]
    settings = tmp_path / "service.yaml"
    settings.write_text(f"models: [{{name: identity, ranker: first, path: {mine}}}]", encoding="utf-8")
    (line,) = overlooked_models(load_config(settings).models)
    assert line.startswith(f"model identity: {mine} replaces the bundled model of this name (identity)")


def test_first_model_beside_another_default_is_named() -> None:
    (line,) = overlooked_models(load_config(None, [named_model(f"fus={bundled.FIRST}")]).models)
    assert line.startswith(
        "model fus answers requests that do not name a model, and another one those that name `default`"
    )


def test_sparse_encoder_is_checked_if_a_model_reads_it(tmp_path: Path) -> None:
    settings = {"listen": "127.0.0.1:0", "sparse_encoder": str(tmp_path / "missing")}
    identity = {"name": "a", "ranker": "identity"}
    check_before_loading(ServiceConfig.model_validate(settings | {"models": [identity]}))
    fusion = {"name": "a", "ranker": "fusion"}
    with pytest.raises(ConfigError, match=r"sparse_encoder: there is no folder .*missing; give one"):
        check_before_loading(ServiceConfig.model_validate(settings | {"models": [fusion]}))
    without = {"name": "a", "ranker": "fusion", "sparse_weight": 0.0}
    check_before_loading(ServiceConfig.model_validate(settings | {"models": [without]}))
