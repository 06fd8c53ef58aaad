"""Health statuses: whose they are, when a watch hears of them, and that a shutdown is for good."""

import asyncio

from grpc_health.v1 import health_pb2

from rerank.names import LIVENESS, SERVICE
from rerank.ports.health import Health, health_statuses
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.registry import ModelDescription

Response = health_pb2.HealthCheckResponse
SERVING, NOT_SERVING = Response.SERVING, Response.NOT_SERVING


def models(*problems: str) -> list[ModelDescription]:
    """Models m0, m1, …, of which the last is the default."""
    info, last = IdentityRanker().info, len(problems) - 1
    return [ModelDescription(f"m{n}", info, "single", n == last, problem) for n, problem in enumerate(problems)]


def status(health: Health, service: str) -> int:
    return health.check(health_pb2.HealthCheckRequest(service=service)).status


def test_service_has_the_status_of_the_default_model_wherever_it_stands():
    assert health_statuses(models("damaged", "")) == {
        "": SERVING,
        SERVICE: SERVING,
        f"{SERVICE}/m0": NOT_SERVING,
        f"{SERVICE}/m1": SERVING,
    }


def test_shutdown_is_for_good_and_the_process_lives_on():
    health = Health()
    health.set_statuses(models(""))
    assert status(health, "") == SERVING
    health.shut_down()
    health.set_statuses(models(""))
    assert (status(health, ""), status(health, LIVENESS)) == (NOT_SERVING, SERVING)


async def test_watch_hears_of_its_own_service_alone():
    health = Health()
    health.set_statuses(models("", ""))
    watch = health.watch(health_pb2.HealthCheckRequest(service=f"{SERVICE}/m1"))
    assert (await anext(watch)).status == SERVING
    following = asyncio.ensure_future(anext(watch))
    health.set_statuses(models("damaged", ""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not following.done()
    health.set_statuses(models("damaged", "damaged, too"))
    assert (await following).status == NOT_SERVING
