"""Shards of the encoding of an index, which any process can encode, and the journal of the finished ones.

A shard is a fixed range of rows, and is encoded in one thread. The vectors therefore do not depend on the number of
workers, nor on kills.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.models.encoder_id import EncoderId
from rerank.models.sparse_encoder import SparseEncoder, SparseEncoderId
from rerank.retrieval.sparse_store import write_part
from rerank.retrieval.store import PassageStore, VectorWriter
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

    def finish(self, shard: int, seconds: float) -> None:
        """Enters the time of a finished shard into the journal, from any process."""
        with self.journal.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), np.float64(seconds).tobytes(), shard * np.float64().nbytes)
            os.fdatasync(file.fileno())


class ShardWorker:
    """Encodes shards of a job in this process.

    Args:
        job: what to encode.
        encoder: the encoder of the job; None loads it.

    Raises:
        ConfigError: another encoder has the name of the job's.
    """

    def __init__(self, job: ShardJob[Any], encoder: Any = None) -> None:
        self._job, self._encoder = job, encoder or job.load_encoder()
        if self._encoder.id != job.encoder:
            raise ConfigError(f"encoder {job.encoder.name} has changed since the build began; start a new build")
        self._texts = PassageStore(job.folder)
        job.create_journal()

    def encode(self, shard: int) -> int:
        """Encodes and stores the passages of a shard; returns their number."""
        start_s = time.perf_counter()
        first = shard * self._job.shard_rows
        texts = list(self._texts.texts_from(first, first + self._job.shard_rows))
        self._job.store(shard, texts, self._encoder)
        self._job.finish(shard, time.perf_counter() - start_s)
        return len(texts)


@dataclass(frozen=True, slots=True)
class DenseJob(ShardJob[EncoderId]):
    """The encoding of all passages as vectors, whose file is allocated."""

    def load_encoder(self) -> Encoder:
        return Encoder(self.encoder.settings, self.device)

    def store(self, shard: int, texts: Sequence[str], encoder: Encoder) -> None:
        """See ShardJob. Raises: CheckpointError if the encoder returns numbers that are not finite."""
        vectors = encoder.encode_passages(texts, self.dtype)
        if not np.isfinite(vectors).all():
            raise CheckpointError(f"encoder {self.encoder.name} returns numbers that are not finite; use another")
        VectorWriter(self.folder).write(shard * self.shard_rows, vectors, encoder.is_truncated(texts))


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
