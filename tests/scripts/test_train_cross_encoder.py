"""The cross-encoder of the comparison learns the order of its lists, and its folder is one of a cross-encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder

from scripts.reproduce.train_cross_encoder import main


@pytest.mark.slow
def test_trained_folder_scores_as_its_lists_say(tmp_path: Path) -> None:
    texts = ["Fleas live a hundred days.", "Deserts are dry."]
    passages = [{"doc_id": str(number), "text": text} for number, text in enumerate(texts)]
    row = {"query_id": "q", "query": "How long does a flea live?", "passages": passages, "relevance": [0.0, 1.0]}
    (tmp_path / "lists.jsonl").write_text(f"{json.dumps(row)}\n" * 8, encoding="utf-8")
    main(tmp_path / "lists.jsonl", tmp_path / "trained", max_tokens=32, batch_size=1, learning_rate=1e-3)
    natural, taught = CrossEncoder(str(tmp_path / "trained")).predict([(row["query"], text) for text in texts])
    assert natural < taught
