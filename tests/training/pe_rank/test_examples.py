"""Training batches of PE-Rank: the prompts and embeddings of serving."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.pe_rank.model import load_pe_base
from rerank_training.pe_rank.objective import PECollator, prompt_ids, with_text
from rich.console import Console

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.prompting.templates import load_template
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import Prepared, Window
from tests.pe_checkpoints import SHORT, WITH_TEXT, write_published
from tests.training.pe_rank.pe_lists import training_lists

#: Of passages, and of queries.
Tables: TypeAlias = tuple[VectorTable, VectorTable]


@pytest.fixture(scope="module")
def tables(encoder: Encoder) -> Tables:
    console = Console(quiet=True)
    return (
        VectorTable(encoder.encode_passages, texts_of([training_lists()], "passages"), console),
        VectorTable(encoder.encode_queries, texts_of([training_lists()], "queries"), console),
    )


def collator_of(checkpoint: Path, encoder: Encoder, tables: Tables, **options: object) -> PECollator:
    base = load_pe_base(checkpoint, encoder, None)
    prompts = VectorPrompts(base.template, base.tokenizer, base.model.own_vocabulary, text_tokens=4)
    passages, queries = tables
    queries_read = queries if prompts.reads_query_vector else None
    return PECollator(prompts, passages, queries_read, base.context_tokens, **options)  # type: ignore[arg-type]


def prepared(ranker: PERankRanker, item: TrainingList) -> Window:
    ready: Prepared = ranker.prepare(item.query, item.passages)
    return Window(ready.query, ready.passages)


@pytest.mark.parametrize("template", [None, SHORT, WITH_TEXT])
def test_prompts_are_those_of_serving(
    encoder: Encoder, tables: Tables, checkpoint: Path, tmp_path: Path, template: str | None
) -> None:
    folder = checkpoint if template is None else write_published(tmp_path / "published", encoder, template=template)
    collator = collator_of(folder, encoder, tables)
    ranker = PERankRanker(folder, encoder, "cpu", passage_text_tokens=4)
    for item in training_lists():
        window = prepared(ranker, item)
        served = ranker._prompts.token_ids(window.query, window.passages)
        assert tuple(prompt_ids(collator.prompts, item)) == served


def test_embeddings_are_those_of_serving(encoder: Encoder, tables: Tables, checkpoint: Path) -> None:
    lists = training_lists(3)
    batch = collator_of(checkpoint, encoder, tables)(lists)
    model = load_pe_base(checkpoint, encoder, None).model
    embeddings, passages = model.embed(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
    ranker = PERankRanker(checkpoint, encoder, "cpu")
    for row, item in enumerate(lists):
        window = prepared(ranker, item)
        vectors = torch.from_numpy(np.stack([window.query.vector, *(p.vector for p in window.passages)]))
        projected = ranker._projector(vectors)
        row_embeddings = embeddings[row, : batch["last_index"][row] + 1]
        torch.testing.assert_close(row_embeddings, ranker._embed(ranker.encode(window), projected), atol=1e-5, rtol=0)
        torch.testing.assert_close(passages[row, : len(item.passages)], projected[1:], atol=1e-5, rtol=0)


def test_window_wider_than_the_model_is_refused(encoder: Encoder, tables: Tables, checkpoint: Path) -> None:
    prompts = collator_of(checkpoint, encoder, tables).prompts
    item = training_lists(2)[1]
    needed = len(prompt_ids(prompts, item))
    with pytest.raises(ConfigError, match=f"with 5 passages needs {needed} positions, the model reads {needed - 1}"):
        PECollator(prompts, *tables, needed - 1)([item])


def test_template_that_shows_the_text_already_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.yaml"
    path.write_text(WITH_TEXT)
    with pytest.raises(ConfigError, match=r"shows \{text\} already"):
        with_text(load_template(str(path)))
