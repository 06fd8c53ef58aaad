"""PE-Rank's training against its authors' code, on their numbers: losses, training files, and the published layout.

The numbers are of liuqi6777/pe_rank at 7c6514d on a checkpoint with random weights.
"""

import filecmp
import json
from pathlib import Path
from typing import Any

import pytest
from rerank_training.lists.align_texts import read_align_texts
from rerank_training.lists.training_list import read_lists
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.pe_rank.model import PEBase, load_pe_base
from rerank_training.pe_rank.objective import (
    ALIGN_TEMPLATE,
    AlignCollator,
    AlignObjective,
    PECollator,
    PEObjective,
    with_text,
)
from rerank_training.pe_rank.published import published_layout
from rerank_training.trainer.losses import IGNORE_INDEX, stepwise_listmle
from rich.console import Console
from torch import Tensor

from rerank.models.encoder import Encoder
from rerank.prompting.templates import load_template
from rerank.prompting.vector_prompts import PASSAGE_SLOT

pytestmark = pytest.mark.shared

#: Their numbers have seven digits.
TOLERANCE = 1e-5
#: The ids of their two marks.
MARK, RANK = 3000, 3001
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def published(parity: Path) -> dict[str, Any]:
    return dict(json.loads((parity / "pe_loss.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def jina(parity: Path) -> Encoder:
    return Encoder(str(parity / "fixtures" / "jina-embeddings-v2-base-en"), "cpu")


@pytest.fixture(scope="module")
def base(parity: Path, jina: Encoder) -> PEBase:
    folder = parity / "fixtures" / "pe-ours"
    loaded = load_pe_base(folder, jina, str(folder / "template.yaml"))
    loaded.model.eval()
    return loaded


@pytest.fixture(scope="module")
def batch(parity: Path, jina: Encoder, base: PEBase) -> dict[str, Tensor]:
    lists = read_lists(parity / "pe_train.jsonl")
    vectors = VectorTable(jina.encode_passages, texts_of([lists], "passages"), QUIET)
    prompts, text_prompts = (base.prompts(words, 4096) for words in (base.template, with_text(base.template)))
    return PECollator(prompts, vectors, None, base.context_tokens, text_prompts, with_choices=True)(lists)


@pytest.mark.parametrize("view", ["", "text_"])
def test_prompts_of_their_training_file_are_theirs(batch, published, view):
    for row, ids in enumerate(published["ids_w" if view else "ids_wo"]):
        prompt = ids[: ids.index(RANK)]
        last = batch[f"{view}last_index"][row]
        found = batch[f"{view}input_ids"][row, : last + 1].tolist()
        assert found == [PASSAGE_SLOT if token == MARK else token for token in prompt]


def test_ranking_losses_and_their_divergence_are_theirs(base, batch, published):
    vectors, with_texts, whole = (
        PEObjective(stepwise_listmle, True, *weights).terms(base.model, batch).sum().item()
        for weights in ((0.0, 0.0), (1.0, 0.0), (1.0, 0.2))
    )
    assert vectors == pytest.approx(published["wo"], rel=TOLERANCE)
    assert with_texts - vectors == pytest.approx(published["w"], rel=TOLERANCE)
    assert whole == pytest.approx(published["both+kl"], rel=TOLERANCE)


def test_loss_of_the_alignment_is_theirs(parity, jina, base, published):
    turns = read_align_texts(parity / "pe_stage1.jsonl")
    vectors = VectorTable(jina.encode_passages, turns, QUIET)
    prompts = base.prompts(load_template(ALIGN_TEMPLATE), 4096)
    batch = AlignCollator(prompts, vectors, base.tokenizer, turns)(list(turns))
    ours = batch["input_ids"].tolist(), batch["labels"].tolist()
    for ids, labels, row, expected in zip(*ours, published["align_ids"], published["align_labels"], strict=True):
        answer = [label for label in expected if label != IGNORE_INDEX]
        n = len(answer) + expected.index(answer[0])
        assert ids[:n] == [PASSAGE_SLOT if token == MARK else token for token in row[:n]]
        assert labels[:n] == expected[:n]
    assert AlignObjective().terms(base.model, batch).sum().item() == pytest.approx(published["align"], rel=TOLERANCE)


def test_published_checkpoint_is_given_back_file_by_file(parity, jina, tmp_path):
    folder = parity / "fixtures" / "pe-rank-mistral-jina"
    loaded = load_pe_base(folder, jina, str(parity / "fixtures" / "pe-ours" / "template.yaml"))
    loaded.model.layout = published_layout(loaded, jina, "rank")
    loaded.model.save_pretrained(tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    assert filecmp.cmpfiles(folder, tmp_path, names, shallow=False) == (names, [], [])


def test_their_files_of_e2rank_are_read(parity):
    lists = read_lists(parity / "e2_train.jsonl")
    best = [item.passages[item.relevance.index(max(item.relevance))].doc_id for item in lists]
    assert [len(item.passages) for item in lists] == [8, 8, 8]
    assert best == ["1", "4", "8"]
