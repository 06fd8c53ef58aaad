"""What evaluation reads: request files and queries, and judgements as ir_measures takes them."""

from __future__ import annotations

from pathlib import Path

from ir_measures import Qrel

from rerank.collections import requests
from rerank.collections.requests import Request, read_beir_queries, read_requests

__all__ = ["Request", "read_beir_qrels", "read_beir_queries", "read_requests", "read_trec_qrels"]


def read_trec_qrels(path: Path) -> list[Qrel]:
    """See rerank/collections/requests.py."""
    return [Qrel(*judged) for judged in requests.read_trec_qrels(path)]


def read_beir_qrels(folder: Path, split: str = "test") -> list[Qrel]:
    """See rerank/collections/requests.py."""
    return [Qrel(*judged) for judged in requests.read_beir_qrels(folder, split)]
