"""Encodes the passages of an index in shards, by worker processes, and keeps a journal of the finished shards.

A shard is a fixed range of rows, and is encoded in one thread. The vectors therefore do not depend on the number of
workers, nor on kills.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.encoder_loading import EncoderId
from rerank.models.sparse_encoder import SparseEncoder, SparseEncoderId
from rerank.retrieval.sparse_store import write_part
from rerank.retrieval.store import PassageStore, write_vectors
from rerank.types import Precision
from rerank.util.files import atomic_file

#: Identity of an encoder.
Id = TypeVar("Id")


@dataclass(frozen=True, slots=True)
class ShardJob(ABC, Generic[Id]):
    """The encoding of all passages of an index, in shards of rows that any process can encode.

    Attributes:
        folder: of the index, with its texts.
        journal: file with the time that each finished shard took, in seconds (float64); 0 for the others.
        encoder: identity of the encoder.
        device: of the encoder.
        dtype: precision of the encoder.
        shard_rows: rows of a shard, which are what a kill costs a worker.
    """

    folder: Path
    journal: Path
    encoder: Id
    device: str
    dtype: Precision
    shard_rows: int

    @abstractmethod
    def load_encoder(self) -> Any: ...

    @abstractmethod
    def store(self, shard: int, texts: Sequence[str], encoder: Any) -> None:
        """Encodes the texts of a shard, and stores the result in its place."""

    def create_journal(self) -> None:
        """Creates the journal unless it is there; a power loss may have cut it."""
        shards = -(-len(PassageStore(self.folder)) // self.shard_rows)
        if not self.journal.exists() or self.journal.stat().st_size != shards * np.float64().nbytes:
            with atomic_file(self.journal) as temporary:
                temporary.write_bytes(np.zeros(shards).tobytes())

    def read_journal(self) -> npt.NDArray[np.float64]:
        """(number of shards,) seconds."""
        return np.fromfile(self.journal, np.float64)

    def ready(self, encoder: Any = None) -> Callable[[int], int]:
        """Returns a function that encodes and stores a shard in this process, and returns the number of its passages.

        Args:
            encoder: the encoder of the job; None loads it.

        Raises:
            ConfigError: another encoder has the name of the job's.
        """
        encoder = encoder or self.load_encoder()
        if encoder.id != self.encoder:
            raise ConfigError(f"encoder {encoder.id.name} has changed since the build began; start a new build")
        return partial(self._encode, encoder, PassageStore(self.folder))

    def _encode(self, encoder: Any, passages: PassageStore, shard: int) -> int:
        start_s = time.perf_counter()
        first = shard * self.shard_rows
        texts = list(passages.texts_from(first, first + self.shard_rows))
        self.store(shard, texts, encoder)
        with self.journal.open("r+b", buffering=0) as file:  # which other processes write, too
            seconds = np.float64(time.perf_counter() - start_s)
            os.pwrite(file.fileno(), seconds.tobytes(), shard * seconds.nbytes)
            os.fdatasync(file.fileno())
        return len(texts)


@dataclass(frozen=True, slots=True)
class DenseJob(ShardJob[EncoderId]):
    """The encoding of all passages as vectors, whose file is allocated."""

    def load_encoder(self) -> Encoder:
        return Encoder(self.encoder.settings, self.device)

    def store(self, shard: int, texts: Sequence[str], encoder: Encoder) -> None:
        """See ShardJob. Raises: CheckpointError if the encoder returns numbers that are not finite."""
        vectors, is_truncated = encoder.vectors_and_truncation(texts, self.dtype)
        if not np.isfinite(vectors).all():
            raise CheckpointError(f"encoder {self.encoder.name} returns numbers that are not finite; use another")
        write_vectors(self.folder, shard * self.shard_rows, vectors, is_truncated)


@dataclass(frozen=True, slots=True)
class SparseJob(ShardJob[SparseEncoderId]):
    """The encoding of all passages as sparse vectors, with a file for each shard until all are joined."""

    def load_encoder(self) -> SparseEncoder:
        return SparseEncoder(self.encoder.name, self.device)

    def store(self, shard: int, texts: Sequence[str], encoder: SparseEncoder) -> None:
        write_part(self.part(shard), encoder.encode_passages(texts, self.dtype))

    def part(self, shard: int) -> Path:
        """The file of a shard, next to the journal."""
        return self.journal.with_name(f"{self.journal.name}-{shard}.npz")


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
    encode = job.ready(encoder)
    with _one_thread():
        yield from map(encode, shards)


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
    global _encode_shard
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _encode_shard = job.ready()


def _encode_in_worker(shard: int) -> int:
    return _encode_shard(shard)


#: Encodes a shard in a worker process.
_encode_shard: Callable[[int], int]


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
