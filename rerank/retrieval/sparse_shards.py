"""Shards of the sparse vectors of an index: each is a file of its own until all are joined."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rerank.errors import ConfigError
from rerank.models.sparse_encoder import SparseEncoder, SparseEncoderId
from rerank.retrieval.shards import ShardJob
from rerank.retrieval.sparse_store import write_part
from rerank.retrieval.store import PassageStore


@dataclass(frozen=True, slots=True)
class SparseJob(ShardJob[SparseEncoderId]):
    """The encoding of all passages as sparse vectors."""

    def part(self, shard: int) -> Path:
        """The file of a shard, beside the journal."""
        return self.journal.with_name(f"{self.journal.name}-{shard}.npz")

    def open(self, encoder: SparseEncoder | None = None) -> SparseShardEncoder:
        """See ShardJob."""
        return SparseShardEncoder(self, encoder or SparseEncoder(self.encoder.name, self.device))


class SparseShardEncoder:
    """Encodes shards of a job in this process.

    Raises:
        ConfigError: another encoder has the name of the job's.
    """

    def __init__(self, job: SparseJob, encoder: SparseEncoder) -> None:
        if encoder.id != job.encoder:
            raise ConfigError(f"sparse encoder {job.encoder.name} has changed since the build began; start a new build")
        self._job, self._encoder = job, encoder
        self._store = PassageStore(job.folder)
        job.create_journal()

    def encode(self, shard: int) -> int:
        """Encodes and stores the passages of a shard; returns their number."""
        start_s = time.perf_counter()
        first = shard * self._job.shard_rows
        texts = list(self._store.texts_from(first, first + self._job.shard_rows))
        write_part(self._job.part(shard), self._encoder.encode(texts, self._job.dtype))
        self._job.finish(shard, time.perf_counter() - start_s)
        return len(texts)
