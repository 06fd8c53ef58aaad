"""Relevance judgements (qrels) in the type that ir_measures takes."""

from __future__ import annotations

from pathlib import Path

from ir_measures import Qrel

from rerank.collections import requests


def read_trec_qrels(path: Path) -> list[Qrel]:
    """Judgements in TREC form; see `rerank.collections.requests.read_trec_qrels`."""
    return [Qrel(*row) for row in requests.read_trec_qrels(path)]


def read_beir_qrels(folder: Path, split: str = "test") -> list[Qrel]:
    """Judgements of a folder in BEIR layout; see `rerank.collections.requests.read_beir_qrels`."""
    return [Qrel(*row) for row in requests.read_beir_qrels(folder, split)]
