"""Encoding on a Ray cluster: the same bytes as in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.models.encoder import Encoder
from rerank.retrieval.encoding import encode_shards
from rerank.retrieval.shards import ShardWorker
from tests.rerank.retrieval.test_encoding import N, new_job


@pytest.mark.ray
def test_actors_give_the_same_bytes_and_do_only_what_is_missing(encoder: Encoder, tmp_path: Path) -> None:
    here, there = new_job(encoder, tmp_path / "here"), new_job(encoder, tmp_path / "there")
    encode_shards(here, encoder, 1, lambda done: None)
    for shard in (3, 1):
        ShardWorker(there, encoder).encode(shard)
    reported: list[int] = []
    encode_shards(there, encoder, "ray", reported.append)
    assert reported == [10, *reported[1:-1], N]
    assert len(reported) == 4
    assert (there.folder / "vectors.npy").read_bytes() == (here.folder / "vectors.npy").read_bytes()
