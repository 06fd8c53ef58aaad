"""Encoding of the passages of an index by actors on a Ray cluster, one for each of its processors.

Every machine must reach the folder of the build, and an encoder that is a folder, under the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rerank.errors import ConfigError
from rerank.retrieval.shards import ShardJob, ShardWorker

try:
    import ray
    from ray.util import ActorPool
except ModuleNotFoundError as error:
    raise ConfigError("--workers ray needs Ray; install rerank-listwise[ray], or give a number") from error

#: Ray's settings; variables of the environment precede.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # by default Ray reports its use to its makers
    "RAY_worker_niceness": "0",  # by default its processes have a low priority
}


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)  # a shard may be encoded twice, with the same result
class _Actor:
    """Encodes shards in one thread."""

    def __init__(self, job: ShardJob[Any]) -> None:
        torch.set_num_threads(1)
        self._worker = ShardWorker(job)

    def encode(self, shard: int) -> int:
        return self._worker.encode(shard)


def encode_on_ray(job: ShardJob[Any], shards: Sequence[int]) -> Iterator[int]:
    """Encodes on the cluster that RAY_ADDRESS names, otherwise on this machine.

    Yields:
        The number of passages of each shard as it is finished.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray.init(os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False)
    try:
        actors = min(int(ray.cluster_resources()["CPU"]), len(shards))
        actor: Any = _Actor  # `remote` is added by the decorator
        pool = ActorPool([actor.remote(job) for _ in range(actors)])
        yield from pool.map_unordered(lambda actor, shard: actor.encode.remote(shard), shards)
    finally:
        ray.shutdown()
