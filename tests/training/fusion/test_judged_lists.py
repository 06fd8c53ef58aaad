"""Judged lists: of request files and of searches, with judgements and collections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rerank_training.fusion.arguments import FusionArguments
from rerank_training.fusion.training import read_judged_lists
from rerank_training.lists.training_list import TrainingList

from rerank.errors import CollectionError
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.types import FirstStageKind
from tests.conftest import PASSAGES

QUERY = "how long does a flea live"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "queries.tsv").write_text(f"1\t{QUERY}\n2\tnobody judged this\n")
    (tmp_path / "qrels.txt").write_text("1 0 flea 2\n1 0 elsewhere 1\n")
    candidates = [{"docid": name, "score": 1.0, "doc": {"text": PASSAGES[name][1]}} for name in ("violin", "flea")]
    (tmp_path / "lists.jsonl").write_text(json.dumps({"query": {"qid": "1", "text": QUERY}, "candidates": candidates}))
    return tmp_path


def only_list(encoder: Encoder, **given: Any) -> TrainingList:
    arguments = FusionArguments(out=Path("unused"), **given)
    (found,) = read_judged_lists(arguments, encoder, lambda: SparseEncoder(device="cpu"))
    return found


def test_judged_queries_are_searched(files: Path, index_folder: Path, encoder: Encoder) -> None:
    paths = {"queries": files / "queries.tsv", "qrels": files / "qrels.txt"}
    found = only_list(encoder, index=index_folder, depth=5, **paths)
    grades = {passage.doc_id: grade for passage, grade in zip(found.passages, found.relevance, strict=True)}
    assert found.query.text == QUERY
    assert len(grades) == len(found.scores) == 5
    assert grades["flea"] == 2.0
    assert set(grades.values()) == {0.0, 2.0}
    assert all(passage.vector is not None for passage in found.passages)


def test_queries_without_judgements_are_refused(files: Path, index_folder: Path, encoder: Encoder) -> None:
    (files / "qrels.txt").write_text("7 0 flea 2\n")
    with pytest.raises(CollectionError, match="none of the 2 queries is judged"):
        only_list(encoder, index=index_folder, queries=files / "queries.tsv", qrels=files / "qrels.txt")


def test_judgements_grade_the_lists_of_a_file(files: Path, encoder: Encoder) -> None:
    found = only_list(encoder, lists=files / "lists.jsonl", qrels=files / "qrels.txt")
    assert found.relevance == (0.0, 2.0)


def test_weight_of_the_service_is_auto_unless_it_is_given() -> None:
    assert FusionArguments(out=Path("unused")).default_weight is FirstStageKind.AUTO
    assert FusionArguments(out=Path("unused"), first_stage_weight="neural").default_weight is FirstStageKind.NEURAL
    assert FusionArguments(out=Path("unused"), first_stage_weight="0.5").default_weight == 0.5
