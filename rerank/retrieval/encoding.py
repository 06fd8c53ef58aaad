"""Encodes passages by worker processes, in shards; a killed build resumes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rerank.errors import ConfigError
from rerank.retrieval.shards import ShardJob, ShardWorker
from rerank.retrieval.store import PassageStore


def encode_shards(job: ShardJob[Any], encoder: Any, workers: int, report: Callable[[int], None]) -> float:
    """Encodes the passages that are not encoded yet.

    Args:
        job: what to encode.
        encoder: the encoder of the job, for work in this process.
        workers: number of processes; 1: this process alone.
        report: called with the number of passages that are encoded.

    Returns:
        The time that all shards took, summed over workers and calls, in seconds.

    Raises:
        ConfigError: a worker died.
    """
    job.create_journal()
    journal = job.read_journal()
    rows = len(PassageStore(job.folder))
    shards = np.flatnonzero(journal == 0).tolist()
    done = rows - sum(min(job.shard_rows, rows - shard * job.shard_rows) for shard in shards)
    report(done)
    is_alone = min(workers, len(shards)) <= 1
    for encoded in _here(job, encoder, shards) if is_alone else _pool(job, workers, shards):
        done += encoded
        report(done)
    return float(job.read_journal().sum())


def _here(job: ShardJob[Any], encoder: Any, shards: list[int]) -> Iterator[int]:
    """Encodes in this process; yields the number of passages of each shard."""
    worker = ShardWorker(job, encoder)
    with _one_thread():
        yield from map(worker.encode, shards)


def _pool(job: ShardJob[Any], workers: int, shards: list[int]) -> Iterator[int]:
    """Encodes in worker processes; yields the number of passages of each shard as it is finished."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch, the JVM and this process
    with ProcessPoolExecutor(min(workers, len(shards)), context, _start_worker, (job,)) as pool:
        try:
            for finished in as_completed([pool.submit(_encode_in_worker, shard) for shard in shards]):
                yield finished.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                "a process that encodes passages died, perhaps for lack of memory; start the same command again, which "
                "goes on with what is encoded, or with fewer --workers"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(job: ShardJob[Any]) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _worker = ShardWorker(job)


def _encode_in_worker(shard: int) -> int:
    return _worker.encode(shard)


#: The encoder of a worker process.
_worker: ShardWorker


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, which a killed parent cannot do."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
