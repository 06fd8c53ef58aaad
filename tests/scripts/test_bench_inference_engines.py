"""The side by side of our engine with others: its systems, how it compares them, and a pass of a real engine."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from rerank.errors import ConfigError
from rerank.inference_servers.vllm import VllmApi
from rerank.models.loading import load_tokenizer_of
from scripts.bench import inference_engines as bench
from scripts.bench import openvino_server
from scripts.bench.engine_process import Pass, cpu_s, listening_on
from tests.causal_lms import write_causal_lm


def passed(scores: list[list[float]], cpu_s: float = 1.0) -> Pass:
    return Pass(tokens=100, elapsed_s=2.0, cpu_s=cpu_s, latencies_s=[1.0] * len(scores), scores=scores)


def test_each_precision_of_ours_is_a_system(tmp_path: Path) -> None:
    models = bench.local_models(tmp_path, ["float32", "bfloat16"])
    assert {label: model.precision for label, model in models.items()} == {
        "ours, float32": "float32",
        "ours, bfloat16": "bfloat16",
    }
    assert all(model.served_by is None for model in models.values())


def test_unknown_precision_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int3 is none of auto, float32"):
        bench.local_models(tmp_path, ["float32", "int3"])


def test_each_server_is_a_system(tmp_path: Path) -> None:
    models = bench.served_models(tmp_path, ["vllm:on=http://a:1", "llama-cpp:on=http://b:2"], "smollm2")
    served = {label: model.served_by for label, model in models.items()}
    assert {label: (by.kind, by.urls, by.model) for label, by in served.items() if by} == {
        "vllm, on": ("vllm", ("http://a:1",), "smollm2"),
        "llama-cpp, on": ("llama-cpp", ("http://b:2",), "smollm2"),
    }


@pytest.mark.parametrize(
    "servers", [["http://a:1"], ["on=http://a:1"], ["vllm:=http://a:1"], ["vllm:a=http://a:1"] * 2]
)
def test_server_without_kind_label_and_address_is_refused(tmp_path: Path, servers: list[str]) -> None:
    with pytest.raises(ConfigError, match="write KIND:LABEL=URL"):
        bench.served_models(tmp_path, servers, "smollm2")


def test_agreement_counts_orders_neighbours_and_pairs() -> None:
    ours = [[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0]]
    its = [[4.5, 3.0, 2.0, 1.0], [4.0, 3.0, 1.0, 2.0]]  # the second window: one of 3 neighbours, one of 6 pairs
    assert bench.agreement(ours, its) == ["1 of 2", "83.3 %", "0.833", "1.0e+00"]


def test_ratio_is_of_processor_time_in_the_same_turn() -> None:
    ours = [passed([[0.0]], cpu_s=1.0), passed([[0.0]], cpu_s=2.0), passed([[0.0]], cpu_s=4.0)]
    its = [passed([[0.0]], cpu_s=2.0)] * 3
    assert bench.against(ours, its) == "1.00 (0.50 to 2.00)"
    assert bench.speed(its)[:2] == ["50 (50 to 50)", "50 (50 to 50)"]


def test_processor_time_is_that_of_this_process() -> None:
    before_s = cpu_s(os.getpid())
    while cpu_s(os.getpid()) == before_s:
        sum(range(100_000))


@pytest.fixture
def stand_in_model() -> Iterator[str]:
    """The address of the server of OpenVINO, with another model behind it: logits that rise with the token."""
    served = openvino_server.server(lambda prompt: np.arange(8, dtype=np.float32) + len(prompt), "small", port=0)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()


def test_server_of_openvino_has_the_api_of_vllm(stand_in_model: str) -> None:
    api = VllmApi("small")
    asked = api.score([1, 2, 3], [2, 7])
    answer = httpx2.post(stand_in_model + asked.path, json=asked.body).json()
    total = math.log(sum(math.exp(token) for token in range(8)))
    assert api.log_probs(answer) == pytest.approx({2: 2 - total, 7: 7 - total})
    assert [card.name for card in api.models(httpx2.get(f"{stand_in_model}/v1/models").json())] == ["small"]
    assert httpx2.post(f"{stand_in_model}/tokenize", json=api.tokenize("a").body).status_code == 404


def test_process_that_listens_is_found(stand_in_model: str) -> None:
    assert listening_on(stand_in_model) == os.getpid()


def test_address_where_nothing_listens_is_refused() -> None:
    with pytest.raises(ConfigError, match="no process of this machine"):
        listening_on("http://127.0.0.1:1")


@pytest.mark.slow
def test_engine_and_server_of_one_model_are_compared(tmp_path: Path) -> None:
    tokenizer = load_tokenizer_of(Path("rerank/checkpoints/first_smollm2"))
    folder = write_causal_lm(tmp_path / "model", "llama", tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder)

    def read(prompt: Sequence[int]) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return model(torch.tensor([prompt])).logits[0, -1].numpy()

    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join(map(request_line, range(7))), encoding="utf-8")
    served = openvino_server.server(read, "small", port=0)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    arguments = ["--requests", requests, "--model", folder, "--name", "small", "--precisions", "float32,bfloat16"]
    arguments += ["--server", f"vllm:same=http://127.0.0.1:{served.server_port}"]
    arguments += ["--windows", 2, "--repeats", 1, "--at-once", "1,2", "--out", tmp_path / "passes.jsonl"]
    try:
        result = CliRunner().invoke(bench.app, list(map(str, arguments)))
    finally:
        served.shutdown()
        served.server_close()
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.output.splitlines() if line]
    assert [row[:2] for row in rows[2:8]] == [
        [load, label] for load in "12" for label in ("ours, float32", "ours, bfloat16", "vllm, same")
    ]
    orders = {row[0]: row[1:] for row in rows[10:]}
    assert orders["ours, float32"][1:4] == orders["vllm, same"][1:4] == ["4 of 4", "100.0 %", "1.000"]
    assert all(float(row[0].replace(",", "")) > 0 for row in orders.values())
    passes = [json.loads(line) for line in (tmp_path / "passes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [each["at_once"] for each in passes] == [1, 1, 1, 2, 2, 2]
    assert all(each["cpu_s"] >= 0 and len(each["latencies_s"]) == len(each["scores"]) == 2 for each in passes)


def request_line(number: int) -> str:
    candidates = [{"docid": str(place), "doc": f"text {place} of query {number}"} for place in range(20)]
    return json.dumps({"query": {"qid": str(number), "text": f"query {number}"}, "candidates": candidates}) + "\n"
