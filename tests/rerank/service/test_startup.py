"""Start of the service: checks before a model is loaded, the description of what runs, and the log of its calls."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from rerank import bundled
from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.config import FirstModel, ServiceConfig, load_config
from rerank.errors import ConfigError, IndexMismatch
from rerank.manifest import served_model
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.service.startup import check_before_loading, description, replaced_models
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.certificates import Authority
from tests.serving import TIMEOUT_S, Served, numbered_candidates, refusal, reranker_of

#: Runs `rerank serve` and prints the modules that it imported.
SERVE = """
import sys
from rerank.commands.cli import main
try:
    main()
finally:
    print(*sys.modules)
"""


@pytest.fixture
def address_in_use() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_address_in_use_is_refused_before_torch_is_imported(address_in_use: str) -> None:
    command = [sys.executable, "-c", SERVE, "serve", "--listen", address_in_use]
    served = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert served.returncode == 2
    assert served.stderr.startswith(f"error: cannot listen on {address_in_use}: ")
    assert not {"torch", "grpc"} & set(served.stdout.split())


@pytest.mark.parametrize("listen", ["localhost", "50051", "127.0.0.1:", "127.0.0.1:http"])
def test_listen_without_a_port_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match=rf"cannot listen on '{listen}': it is not HOST:PORT, such as .*:50051"):
        check_before_loading(ServiceConfig(listen=listen))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.1.2.3:0"])
def test_free_address_of_this_machine_passes(listen: str) -> None:
    check_before_loading(ServiceConfig(listen=listen))


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
        check_before_loading(ServiceConfig.model_validate({"listen": listen} | guarded))


def test_http_address_is_guarded_too() -> None:
    with pytest.raises(ConfigError, match=r"^http 0\.0\.0\.0:0: anyone"):
        check_before_loading(ServiceConfig.model_validate({"listen": "127.0.0.1:0", "http": "0.0.0.0:0"}))


def test_unusable_keys_and_certificates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys: .* cannot be read"):
        check_before_loading(ServiceConfig(listen="127.0.0.1:0", keys=tmp_path / "missing.yaml"))
    tls = {"certificate": tmp_path / "no.pem", "key": tmp_path / "no.key"}
    with pytest.raises(ConfigError, match=r"tls: .*no\.pem cannot be read"):
        check_before_loading(ServiceConfig.model_validate({"listen": "127.0.0.1:0", "tls": tls}))


def test_folder_that_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexMismatch, match=r"is no index: it has no manifest\.json"):
        check_before_loading(ServiceConfig(listen="127.0.0.1:0", index=tmp_path))


def test_missing_folder_of_a_model_is_refused(tmp_path: Path) -> None:
    model = FirstModel(name="mine", ranker="first", path=tmp_path / "missing")
    with pytest.raises(ConfigError, match=f"model mine: there is no folder {tmp_path / 'missing'}"):
        check_before_loading(ServiceConfig(listen="127.0.0.1:0", models=(model,)))


def test_missing_folder_of_the_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoder: there is no folder \./no/such"):
        check_before_loading(ServiceConfig(listen="127.0.0.1:0", encoder="./no/such"))


def test_description_names_models_index_limits_and_calls(encoder: Encoder) -> None:
    reranker = reranker_of(encoder, {"keep": IdentityRanker()})
    text = "\n".join(description("127.0.0.1:50051", reranker))
    assert "model keep, the default: identity, strategy sliding(20/10)" in text
    assert "index: none" in text
    assert "limits: 1,000 candidates and 120 s per request" in text
    assert (
        '--target 127.0.0.1:50051, rerank models --target 127.0.0.1:50051, or RerankClient("127.0.0.1:50051")' in text
    )


def test_bundled_model_that_is_replaced_is_named(tmp_path: Path) -> None:
    mine = Path(shutil.copytree(bundled.FIRST, tmp_path / "default"))
    config = load_config(None, [served_model(f"default={mine}")])
    assert list(replaced_models(config.models)) == [
        f"model default: {mine} replaces the bundled model of this name (first in a cascade behind pe-rank); under "
        "another name, such as my-default, it would stand beside it"
    ]
    settings = tmp_path / "service.yaml"
    settings.write_text(f"models: [{{name: identity, ranker: first, path: {mine}}}]", encoding="utf-8")
    (line,) = replaced_models(load_config(settings).models)
    assert line.startswith(f"model identity: {mine} replaces the bundled model of this name (identity)")


def test_models_beside_the_bundled_ones_replace_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "service.yaml"
    settings.write_text("models: [{name: first, ranker: first, window_size: 10}, {name: pe-rank, ranker: pe-rank}]")
    for config in (
        load_config(None),
        load_config(None, [served_model(f"first={bundled.FIRST}")]),
        load_config(None, [served_model(f"pe-rank={bundled.PE_RANK}")]),
        load_config(settings),
    ):
        assert not list(replaced_models(config.models))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """The last line of the log of calls."""
    caplog.set_level(logging.INFO, "rerank.calls")

    def last_line() -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:  # the line is written after the client has its answer
            if lines := [record.getMessage() for record in caplog.records if record.name == "rerank.calls"]:
                return lines[-1]
            time.sleep(0.01)
        raise AssertionError("nothing was logged")

    return last_line


def test_answered_call_is_one_line_of_the_log(service: Served, logged: Callable[[], str]) -> None:
    request = pb.RerankRequest(query="secret", candidates=numbered_candidates([1, 2, 3]), model="number")
    with grpc.insecure_channel(service.address) as channel:
        RerankServiceStub(channel).Rerank(request, timeout=TIMEOUT_S, metadata=[("x-request-id", "r-17")])
    assert logged().startswith("Rerank OK ")
    assert logged().endswith(" ms id=r-17 model=number candidates=3 windows=1")


def test_refused_call_is_logged_with_its_status_and_without_texts(service: Served, logged: Callable[[], str]) -> None:
    request = pb.RerankRequest(query="secret", candidates=numbered_candidates([1]), model="no\nmodel")
    with grpc.insecure_channel(service.address) as channel:
        stub = RerankServiceStub(channel)
        assert refusal(lambda: stub.Rerank(request, timeout=TIMEOUT_S)).code is grpc.StatusCode.NOT_FOUND
    assert logged().startswith("Rerank NOT_FOUND ")
    assert re.search(r" ms id=[0-9a-f]{32} model='no\\nmodel' candidates=1 windows=0$", logged())


@pytest.mark.parametrize("given", ["r-17", "x" * 128])
def test_id_of_a_request_is_returned_with_its_answer_and_with_its_error(service: Served, given: str) -> None:
    with grpc.insecure_channel(service.address) as channel:
        stub = RerankServiceStub(channel)
        for model in ("number", "none"):
            request = pb.RerankRequest(query="q", candidates=numbered_candidates([1]), model=model)
            call = stub.Rerank.future(request, timeout=TIMEOUT_S, metadata=[("x-request-id", given)])
            assert dict(call.trailing_metadata())["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129])
def test_request_without_a_usable_id_gets_a_new_one(service: Served, given: str | None) -> None:
    with grpc.insecure_channel(service.address) as channel:
        sent = [] if given is None else [("x-request-id", given)]
        stub = RerankServiceStub(channel)
        calls = [stub.ListModels.future(pb.ListModelsRequest(), timeout=TIMEOUT_S, metadata=sent) for _ in range(2)]
        ids = {dict(call.trailing_metadata())["x-request-id"] for call in calls}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
