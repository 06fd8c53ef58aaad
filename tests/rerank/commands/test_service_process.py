"""Service processes: `rerank serve` and signals, its successor at the same address, and a start that fails."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.commands.service_process import service_process
from rerank.config import load_config
from rerank.errors import ConfigError
from rerank.ports.server import serve
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests import serving
from tests.causal_lms import write_causal_lm
from tests.serving import TIMEOUT_S, refusal, wait_for
from tests.small_tokenizers import byte_level

IDENTITY = load_config(None, models=[{"name": "identity", "ranker": "identity"}], listen="127.0.0.1:0", device="cpu")
QUERY = "how long does a flea live"
#: Encoding these takes many seconds.
SLOW = [pb.Candidate(doc_id=f"d{number}", text=f"{number} fleas in winter " * 60) for number in range(500)]

#: Runs a service with the configuration file argv[1], prints its address, and waits.
PARENT = """
import sys
from pathlib import Path
from rerank.config import load_config
from rerank.commands.service_process import service_process

with service_process(load_config(Path(sys.argv[1]))) as address:
    print(address, flush=True)
    input()
"""


def pe_rank_service(folder: Path, checkpoint: Path) -> AbstractContextManager[serving.ServiceProcess]:
    models = [{"name": "pe-rank", "ranker": "pe-rank", "path": str(checkpoint)}]
    return serving.service_process(folder, models=models)


@contextmanager
def slow_call(address: str) -> Iterator[grpc.Future]:
    """Makes a call that keeps the service busy for many seconds."""
    with grpc.insecure_channel(address) as channel:
        stub = RerankServiceStub(channel)
        request = pb.RerankRequest(query=QUERY, candidates=SLOW, allow_partial=True)
        call = stub.Rerank.future(request, timeout=TIMEOUT_S)
        for _ in range(50):  # a short call overtakes the parts of a long one, so the first answer shows nothing
            stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)
        assert not call.done()
        yield call


@dataclass(frozen=True)
class Ended:
    """A service that ended at a second signal while it answered a call."""

    address: str
    code: int
    seconds: float
    log: str
    of_call: grpc.StatusCode


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Ended:
    folder = tmp_path_factory.mktemp("ended")
    with pe_rank_service(folder, checkpoint) as service, slow_call(service.address) as call:
        service.process.terminate()
        time.sleep(0.5)
        assert not call.done()
        start_s = time.monotonic()
        service.process.terminate()
        code = service.process.wait(TIMEOUT_S)
        seconds = time.monotonic() - start_s
        return Ended(service.address, code, seconds, service.log, refusal(call.result).code)


@pytest.mark.slow
def test_second_signal_ends_the_service_at_once(ended):
    """It took 36 s, for the calls in flight, and ended with a traceback."""
    assert (ended.code, ended.of_call) == (1, grpc.StatusCode.UNAVAILABLE)
    assert ended.seconds < 5
    assert "second signal received" in ended.log
    assert "Traceback" not in ended.log


@pytest.mark.slow
def test_service_stops_in_order_right_after_calls_that_were_given_up(tmp_path, checkpoint):
    """It ended with the signal of an assertion, in two stops of six."""
    request = pb.RerankRequest(query=QUERY, candidates=SLOW[:50], model="pe-rank")
    with pe_rank_service(tmp_path, checkpoint) as service:
        with ExitStack() as stack:
            channels = [stack.enter_context(grpc.insecure_channel(service.address)) for _ in range(8)]
            end_s, calls = time.monotonic() + 2, list[Any]()
            while time.monotonic() < end_s:
                calls = [RerankServiceStub(channel).Rerank.future(request, timeout=0.003) for channel in channels]
                calls += [RerankServiceStub(channel).Rerank.future(request) for channel in channels]
                time.sleep(0.005)
                for call in calls:
                    call.cancel()
            service.process.terminate()
        assert service.process.wait(TIMEOUT_S) == 0
        assert "Traceback" not in service.log


@pytest.mark.slow
def test_fresh_service_at_the_address_of_another_answers_and_ends_with_its_killed_parent(ended, tmp_path):
    """It answers as the guide has it: the language model is loaded by the first request for it."""
    passages = ["glaciers flow", "bread rises", "an adult flea lives a hundred days"]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"listen": ended.address, "device": "cpu"}))
    command = [sys.executable, "-c", PARENT, str(config)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent,
        RerankClient(ended.address, attempts=1) as client,
    ):
        try:
            assert parent.stdout.readline().strip() == ended.address
            models = client.list_models(TIMEOUT_S).models
            assert {model.name for model in models if model.is_loaded} == {"default", "pe-rank", "identity"}
            for model in ("default", "pe-rank", "first"):
                assert client.rerank(QUERY, passages, 10 * TIMEOUT_S, model=model).results[0].doc_id == "2"
            memory = {model.name: model.memory_bytes for model in client.list_models(TIMEOUT_S).models}
            assert memory["first"] > 3e8
            assert memory["pe-rank-first"] == 0
        finally:
            parent.kill()
        wait_for(lambda: is_unavailable(client))
    (log,) = tmp_path.glob("rerank-serve-*/serve.log")
    assert "shutting down" in log.read_text(encoding="utf-8")
    assert "Traceback" not in log.read_text(encoding="utf-8")


def is_unavailable(client: RerankClient) -> bool:
    try:
        client.list_models(TIMEOUT_S)
    except ServiceError as error:
        return error.code is grpc.StatusCode.UNAVAILABLE
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_service(number):
    addresses: list[str] = []

    def announce(address: str) -> None:
        addresses.append(address)
        os.kill(os.getpid(), number)

    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under `nohup` inherit that it is ignored
    try:
        asyncio.run(serve(IDENTITY, announce))
    finally:
        signal.signal(signal.SIGHUP, inherited)
    with RerankClient(addresses[0], attempts=1) as client:
        assert is_unavailable(client)


def test_service_that_cannot_announce_its_address_stops():

    def announce(address: str) -> None:
        raise OSError(errno.ENOSPC, address)

    with pytest.raises(OSError, match="127") as caught:
        asyncio.run(serve(IDENTITY, announce))
    with RerankClient(caught.value.args[1], attempts=1) as client:
        assert is_unavailable(client)


@pytest.mark.slow
def test_process_that_does_not_start_says_why():
    config = load_config(None, listen="256.0.0.1:0", device="cpu")
    problem = r"(?s)the service did not start:.*error: .*cannot listen on 256\.0\.0\.1:0"
    with pytest.raises(ConfigError, match=problem), service_process(config):
        pass


@pytest.mark.slow
def test_service_stops_and_serves_other_models_while_one_hangs_on_a_text(tmp_path):
    """A signal was not heard for 40 s."""
    tokenizer = byte_level()
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    tokenizer.chat_template = (
        "{% for message in messages %}{% if 'stuck' in message['content'] %}" + loop + "{% endif %}"
        "{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    )
    folder = write_causal_lm(tmp_path / "lm", "llama", tokenizer)
    lm = {"name": "lm", "ranker": "first", "path": str(folder), "template": "first"}
    models = [lm, {"name": "identity", "ranker": "identity"}]
    with (
        serving.service_process(tmp_path, models=models, drain_s=0.5) as service,
        grpc.insecure_channel(service.address) as channel,
    ):
        stub = RerankServiceStub(channel)
        candidates = [pb.Candidate(doc_id=text, text=text) for text in ("a", "b")]
        stub.Rerank(pb.RerankRequest(model="lm", query="q", candidates=candidates), timeout=TIMEOUT_S)
        stuck = stub.Rerank.future(pb.RerankRequest(model="lm", query="stuck", candidates=candidates))
        for _ in range(3):
            stub.Rerank(pb.RerankRequest(model="identity", query="q", candidates=candidates), timeout=TIMEOUT_S)
        assert not stuck.done()
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(timeout=30) == 0
    assert "shutting down" in service.log
    assert service.log.rstrip().endswith("stopped; calls that ended without an answer: 1")
    assert "accept4" not in service.log, "gRPC logs the socket that stops listening"
