"""Encoding of the passages of an index, by worker processes in shards that a call after a kill need not repeat.

A shard is a fixed range of rows, and a worker encodes it in one thread. The vectors therefore do not depend on the
number of workers, nor on kills.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from rerank.errors import CheckpointError, ConfigError
from rerank.files import atomic_file
from rerank.models.encoder import Encoder, EncoderId
from rerank.retrieval.store import PassageStore, VectorWriter
from rerank.types import EncoderDtype

#: Number of processes that encode, or the processors of a Ray cluster.
Workers: TypeAlias = int | Literal["ray"]


@dataclass(frozen=True, slots=True)
class EncodingJob:
    """The encoding of all passages of an index, in shards of rows that any process can encode.

    Attributes:
        folder: of the index, with its texts and its allocated vectors.
        journal: file with the time that each finished shard took, in seconds (float64); 0 for the others.
        encoder: identity of the encoder.
        device: of the encoder.
        dtype: precision of the encoder.
        shard_rows: rows of a shard, which are what a kill costs a worker.
    """

    folder: Path
    journal: Path
    encoder: EncoderId
    device: str
    dtype: EncoderDtype
    shard_rows: int = 512

    def create_journal(self) -> None:
        """Creates the journal unless it is there."""
        if not self.journal.exists():
            shards = -(-len(PassageStore(self.folder)) // self.shard_rows)
            with atomic_file(self.journal) as temporary:
                temporary.write_bytes(np.zeros(shards).tobytes())

    def read_journal(self) -> npt.NDArray[np.float64]:
        """(number of shards,) seconds."""
        return np.fromfile(self.journal, np.float64)

    def finish(self, shard: int, seconds: float) -> None:
        """Enters the time of a finished shard into the journal, from any process."""
        with self.journal.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), np.float64(seconds).tobytes(), shard * np.float64().nbytes)
            os.fdatasync(file.fileno())


class ShardEncoder:
    """Encodes shards of a job in this process.

    Args:
        job: what to encode.
        encoder: the encoder of the job; None loads it.

    Raises:
        ConfigError: another encoder has the name of the job's.
    """

    def __init__(self, job: EncodingJob, encoder: Encoder | None = None) -> None:
        self._job = job
        self._encoder = encoder or Encoder(job.encoder.name, job.device)
        if self._encoder.id != job.encoder:
            raise ConfigError(f"encoder {job.encoder.name} has changed since the build began; start a new build")
        self._store = PassageStore(job.folder)
        self._writer = VectorWriter(job.folder)
        job.create_journal()

    def encode(self, shard: int) -> int:
        """Encodes and stores the passages of a shard; returns their number.

        Raises:
            CheckpointError: the encoder returns numbers that are not finite.
        """
        start_s = time.perf_counter()
        first = shard * self._job.shard_rows
        texts = list(self._store.texts_from(first, first + self._job.shard_rows))
        vectors = self._encoder.encode(texts, dtype=self._job.dtype)
        if not np.isfinite(vectors).all():
            raise CheckpointError(f"encoder {self._job.encoder.name} returns numbers that are not finite; use another")
        self._writer.write(first, vectors, self._encoder.is_truncated(texts))
        self._job.finish(shard, time.perf_counter() - start_s)
        return len(texts)


def encode_passages(job: EncodingJob, encoder: Encoder, workers: Workers, report: Callable[[int], None]) -> float:
    """Encodes the passages that are not encoded yet.

    Args:
        job: what to encode.
        encoder: the encoder of the job, for work in this process.
        workers: number of processes, of which 1 is this process; or the processors of a Ray cluster.
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
    for encoded in _encoded(job, encoder, workers, shards):
        done += encoded
        report(done)
    return float(job.read_journal().sum())


def _encoded(job: EncodingJob, encoder: Encoder, workers: Workers, shards: list[int]) -> Iterator[int]:
    """Encodes the shards; yields the number of passages of each one as it is finished."""
    if workers == "ray":
        from rerank.retrieval.ray_workers import encode_on_ray  # Ray is an extra

        return encode_on_ray(job, shards) if shards else iter(())
    return _here(job, encoder, shards) if min(workers, len(shards)) <= 1 else _pool(job, workers, shards)


def _here(job: EncodingJob, encoder: Encoder, shards: list[int]) -> Iterator[int]:
    """Encodes in this process."""
    shard_encoder = ShardEncoder(job, encoder)
    with _one_thread():
        yield from map(shard_encoder.encode, shards)


def _pool(job: EncodingJob, workers: int, shards: list[int]) -> Iterator[int]:
    """Encodes in worker processes."""
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


def _start_worker(job: EncodingJob) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _worker = ShardEncoder(job)


def _encode_in_worker(shard: int) -> int:
    return _worker.encode(shard)


#: The encoder of a worker process.
_worker: ShardEncoder


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
