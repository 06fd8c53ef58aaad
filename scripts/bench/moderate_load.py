"""Share of requests that a service answers in time below its capacity, with its 95 % interval.

    python -m scripts.bench.moderate_load [--model pe-rank] [--load .7] [--load .9] [--calls 300] [--deadline-s 2]

Starts `rerank serve`. Its capacity is the rate at which 16 callers that always ask are answered. Then requests come at
random (a Poisson process), each with a deadline, at these parts of that rate.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Annotated

import typer
from scipy.stats import binomtest

from rerank.commands.run import run
from scripts.attacks.target import Target
from scripts.random_requests import random_request
from scripts.service import running_service

#: Passages of a request, and their length in characters.
_PASSAGES, _CHARACTERS = 10, 300
#: Callers that measure the capacity, the calls of each, and the seconds for a call of them.
_CALLERS, _CALLS_OF_EACH, _TIMEOUT_S = 16, 10, 600.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[str, typer.Option(help="The model that is asked.")] = "pe-rank",
    load: Annotated[list[float] | None, typer.Option(help="Part of the capacity. Repeatable; default: .7 .9")] = None,
    calls: Annotated[int, typer.Option(min=1, help="Requests of each load.")] = 300,
    deadline_s: Annotated[float, typer.Option(help="Seconds that each request has.")] = 2.0,
) -> None:
    """Print the capacity, and the share that is answered in time at each load."""
    settings = {"models": [{"name": model, "ranker": model}]}
    with running_service(settings) as service:
        asyncio.run(_measure(service.address, model, load or [0.7, 0.9], calls, deadline_s))


async def _measure(address: str, model: str, loads: list[float], calls: int, deadline_s: float) -> None:
    draw = random.Random(0)

    async def send(target: Target, timeout_s: float) -> bool:
        return await target.rerank(random_request(draw, model, _PASSAGES, _CHARACTERS), timeout_s) == "OK"

    async def ask(target: Target) -> None:
        for _ in range(_CALLS_OF_EACH):
            await send(target, _TIMEOUT_S)

    async with Target(address) as target:
        await ask(target)  # warms it up
        start_s = time.perf_counter()
        await asyncio.gather(*(ask(target) for _ in range(_CALLERS)))
        per_s = _CALLERS * _CALLS_OF_EACH / (time.perf_counter() - start_s)
        print(f"capacity: {per_s:.1f} requests a second")
        for load in loads:
            tasks = list[asyncio.Task[bool]]()
            for _ in range(calls):
                await asyncio.sleep(draw.expovariate(load * per_s))
                tasks.append(asyncio.create_task(send(target, deadline_s)))
            answered = sum(await asyncio.gather(*tasks))
            low, high = binomtest(answered, calls).proportion_ci(method="wilson")
            print(f"load {load:g}: {answered} of {calls} in {deadline_s:g} s, {low:.3f} to {high:.3f}", flush=True)


if __name__ == "__main__":
    run(app)
