"""Encodes the passages of an index in shards, by worker processes. Each finished shard is a file.

A shard is a fixed range of rows, and is encoded by one thread. So the vectors depend neither on the number of workers
nor on kills. A shard is identified by its first row.
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
from rerank.retrieval import sparse_store, store
from rerank.retrieval.parts import read_parts, write_part
from rerank.retrieval.store import PassageTexts
from rerank.types import Precision

#: Identity of an encoder.
Id = TypeVar("Id")


@dataclass(frozen=True, slots=True)
class ShardJob(ABC, Generic[Id]):
    """The encoding of all passages of an index, in shards of rows that any process can encode.

    Attributes:
        folder: folder of the index, with its texts.
        parts: folder of the finished shards, see rerank.retrieval.parts.
        encoder: identity of the encoder.
        device: name of the encoder's device, such as cpu or cuda:0.
        dtype: precision of the encoder.
        shard_rows: number of rows in a shard; a killed worker loses the work on one shard.
    """

    folder: Path
    parts: Path
    encoder: Id
    device: str
    dtype: Precision
    shard_rows: int

    @abstractmethod
    def load_encoder(self) -> Any: ...

    @abstractmethod
    def encode(self, texts: Sequence[str], encoder: Any) -> dict[str, npt.NDArray[Any]]:
        """Encodes texts, and returns the arrays of a part by their names."""

    @abstractmethod
    def join(self) -> None:
        """Writes the vectors of the index from the parts of all shards. Raises: OSError if the disk is full."""

    def part_files(self) -> list[Path]:
        """The files of all shards, finished or not, in the order of their rows."""
        rows = len(PassageTexts(self.folder))
        return [self._part_file(first, rows) for first in range(0, rows, self.shard_rows)]

    def _part_file(self, first: int, rows: int) -> Path:
        return self.parts / f"{first}-{min(first + self.shard_rows, rows)}.npz"

    def ready(self, encoder: Any = None) -> Callable[[int], int]:
        """A function: first row of a shard → number of its passages, which it encodes and stores in this process.

        Args:
            encoder: the encoder of the job; None to load it.

        Raises:
            ConfigError: the encoder of this name is not the one with which the build began.
        """
        encoder = encoder or self.load_encoder()
        if encoder.id != self.encoder:
            raise ConfigError(f"encoder {encoder.id.name} has changed since the build began; start a new build")
        return partial(self._encode_shard, encoder, PassageTexts(self.folder))

    def _encode_shard(self, encoder: Any, passages: PassageTexts, first: int) -> int:
        start_s = time.perf_counter()
        texts = list(passages.texts_from(first, first + self.shard_rows))
        arrays = self.encode(texts, encoder)
        arrays["seconds"] = np.array(time.perf_counter() - start_s)
        write_part(self._part_file(first, len(passages)), arrays)
        return len(texts)


@dataclass(frozen=True, slots=True)
class DenseJob(ShardJob[EncoderId]):
    """The encoding of all passages as vectors."""

    def load_encoder(self) -> Encoder:
        return Encoder(self.encoder.settings, self.device)

    def encode(self, texts: Sequence[str], encoder: Encoder) -> dict[str, npt.NDArray[Any]]:
        """See ShardJob. Raises: CheckpointError if the encoder returns numbers that are not finite."""
        vectors, is_truncated = encoder.vectors_and_truncation(texts, self.dtype)
        if not np.isfinite(vectors).all():
            raise CheckpointError(f"encoder {self.encoder.name} returns numbers that are not finite; use another")
        return store.part_arrays(vectors, is_truncated)

    def join(self) -> None:
        store.join_vectors(self.part_files(), self.folder)


@dataclass(frozen=True, slots=True)
class SparseJob(ShardJob[SparseEncoderId]):
    """The encoding of all passages as sparse vectors."""

    def load_encoder(self) -> SparseEncoder:
        return SparseEncoder(self.encoder.name, self.device)

    def encode(self, texts: Sequence[str], encoder: SparseEncoder) -> dict[str, npt.NDArray[Any]]:
        return sparse_store.part_arrays(encoder.encode_passages(texts, self.dtype), self.encoder.vocabulary_size)

    def join(self) -> None:
        sparse_store.join_sparse_vectors(self.part_files(), self.folder)


def encode_shards(job: ShardJob[Any], encoder: Any, workers: int, report: Callable[[int], None]) -> float:
    """Encodes the passages that are not encoded yet.

    Args:
        job: the job of the shards.
        encoder: the encoder of the job, which is used if this process encodes.
        workers: number of worker processes; 1 for this process alone.
        report: called with the number of passages that are encoded so far.

    Returns:
        The time of all shards in seconds, summed over workers and over calls for the same job.

    Raises:
        ConfigError: a worker died.
        OSError: the disk is full.
    """
    job.parts.mkdir(exist_ok=True)
    for unfinished in job.parts.glob(".*"):  # left by a process that was killed while it wrote a part
        unfinished.unlink()
    rows, files = len(PassageTexts(job.folder)), job.part_files()
    shards = [number * job.shard_rows for number, file in enumerate(files) if not file.exists()]
    done = rows - sum(min(job.shard_rows, rows - first) for first in shards)
    report(done)
    is_alone = min(workers, len(shards)) <= 1
    for encoded in _encode_here(job, encoder, shards) if is_alone else _encode_in_pool(job, workers, shards):
        done += encoded
        report(done)
    return sum(float(seconds) for seconds in read_parts(files, "seconds"))


def _encode_here(job: ShardJob[Any], encoder: Any, shards: list[int]) -> Iterator[int]:
    """Encodes in this process; yields the number of passages of each shard."""
    encode = job.ready(encoder)
    with _one_thread():
        yield from map(encode, shards)


def _encode_in_pool(job: ShardJob[Any], workers: int, shards: list[int]) -> Iterator[int]:
    """Encodes in worker processes; yields the number of passages of each shard as it is finished."""
    context = multiprocessing.get_context("spawn")  # a fork could copy locks of torch or the JVM that are held
    with ProcessPoolExecutor(min(workers, len(shards)), context, _start_worker, (job,)) as pool:
        try:
            for finished in as_completed([pool.submit(_encode_in_worker, shard) for shard in shards]):
                yield finished.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                "a process that encodes passages died, perhaps for lack of memory; start the same command again, which "
                "resumes after the encoded passages, perhaps with fewer --workers"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(job: ShardJob[Any]) -> None:
    global _encode_shard
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _encode_shard = job.ready()


def _encode_in_worker(first: int) -> int:
    return _encode_shard(first)


#: First row of a shard → number of its passages; set in each worker process, see `ShardJob.ready`.
_encode_shard: Callable[[int], int]


def _end_with_parent() -> None:
    """Ends this process when its parent has ended, because a killed parent cannot end it."""
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
