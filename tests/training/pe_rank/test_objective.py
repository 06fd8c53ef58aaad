"""Batches and losses of PE-Rank: the prompts, embeddings and scores of serving; alignment of the projector."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from rerank_training.lists.align_texts import AlignTurns
from rerank_training.lists.vector_table import VectorTable, texts_of
from rerank_training.pe_rank.model import PEBase, PEModel, load_pe_base
from rerank_training.pe_rank.objective import (
    ALIGN_TEMPLATE,
    AlignCollator,
    AlignObjective,
    PECollator,
    PEObjective,
    prompt_ids,
    with_text,
)
from rerank_training.trainer.losses import IGNORE_INDEX, kl, listmle, stepwise_listmle
from rich.console import Console
from torch import Tensor

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.prompting.templates import load_template
from rerank.prompting.vector_prompts import PASSAGE_SLOT, VectorPrompts
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from tests.fakes import prepared_window
from tests.pe_checkpoints import SHORT, WITH_TEXT, write_perturbed, write_published
from tests.training.small_lists import training_lists

LISTS = training_lists(6)
QUIET = Console(quiet=True)


@cache
def tables(encoder: Encoder) -> tuple[VectorTable, VectorTable]:
    """Vectors of the passages, and of the queries."""
    return (
        VectorTable(encoder.encode_passages, texts_of([training_lists()], "passages"), QUIET),
        VectorTable(encoder.encode_queries, texts_of([training_lists()], "queries"), QUIET),
    )


@cache
def base_and_collator(
    folder: Path, encoder: Encoder, shows_texts: bool = False, stepwise: bool = False
) -> tuple[PEModel, PECollator]:
    base = load_pe_base(folder, encoder, None)
    prompts = base.prompts(base.template, 4)
    texts = base.prompts(with_text(base.template), 4) if shows_texts else None
    passages, queries = tables(encoder)
    queries_read = queries if prompts.reads_query_vector else None
    return base.model, PECollator(prompts, passages, queries_read, base.context_tokens, texts, stepwise)


@pytest.mark.parametrize("template", [None, SHORT, WITH_TEXT])
def test_prompts_are_those_of_serving(encoder, checkpoint, tmp_path, template):
    folder = checkpoint if template is None else write_published(tmp_path / "published", encoder, template=template)
    _, collator = base_and_collator(folder, encoder)
    ranker = PERankRanker(folder, encoder, "cpu", passage_text_tokens=4)
    for item in training_lists():
        window = prepared_window(ranker, item.query, item.passages)
        served = ranker._prompts.token_ids(window.query, window.passages)
        assert tuple(prompt_ids(collator.prompts, item)) == served


def test_embeddings_are_those_of_serving(encoder, checkpoint):
    lists = training_lists(3)
    model, collator = base_and_collator(checkpoint, encoder)
    batch = collator(lists)
    embeddings, passages = model.embed(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
    ranker = PERankRanker(checkpoint, encoder, "cpu")
    for row, item in enumerate(lists):
        window = prepared_window(ranker, item.query, item.passages)
        vectors = torch.from_numpy(np.stack([window.query.vector, *(p.vector for p in window.passages)]))
        projected = ranker._projector(vectors)
        row_embeddings = embeddings[row, : batch["last_index"][row] + 1]
        torch.testing.assert_close(row_embeddings, ranker._embed(ranker.encode(window), projected), atol=1e-5, rtol=0)
        torch.testing.assert_close(passages[row, : len(item.passages)], projected[1:], atol=1e-5, rtol=0)


def test_window_wider_than_the_model_is_refused(encoder, checkpoint):
    _, collator = base_and_collator(checkpoint, encoder)
    item = training_lists(2)[1]
    needed = len(prompt_ids(collator.prompts, item))
    with pytest.raises(ConfigError, match=f"with 5 passages needs {needed} positions, the model reads {needed - 1}"):
        replace(collator, context_tokens=needed - 1)([item])


def test_template_that_shows_the_text_already_is_refused(tmp_path):
    path = tmp_path / "text.yaml"
    path.write_text(WITH_TEXT)
    with pytest.raises(ConfigError, match=r"shows \{text\} already"):
        with_text(load_template(str(path)))


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("{rank} [{candidate}]\n", "{rank} [{candidate}] {text}\n"),
        ("{candidate}", "{candidate} {text}"),
        ("[{candidate}, a vector] ", "[{candidate} {text}, a vector] "),
    ],
)
def test_text_follows_the_bracket_around_the_vector(body, shown):
    assert with_text(replace(load_template("pe_rank"), body=body)).body == shown


@pytest.fixture(scope="module", params=["ours", "published"])
def folder(
    request: pytest.FixtureRequest, checkpoint: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("pe") / request.param
    if request.param == "ours":
        return write_perturbed(out, checkpoint)
    return write_published(out, encoder, template=SHORT)


def model_and_batch(folder: Path, encoder: Encoder, stepwise: bool = False) -> tuple[PEModel, dict[str, Tensor]]:
    model, collator = base_and_collator(folder, encoder, True, stepwise)
    return model, collator(LISTS)


@pytest.mark.parametrize("decoding", ["one_step", "dynamic"])
def test_scores_are_those_of_serving(folder, encoder, decoding):
    model, batch = model_and_batch(folder, encoder)
    scores = PEObjective(listmle, stepwise=decoding == "dynamic").scores(model, batch)
    ranker = PERankRanker(folder, encoder, "cpu", decoding=decoding)  # type: ignore[arg-type]
    served = rank_windows(ranker, [prepared_window(ranker, item.query, item.passages) for item in LISTS])
    for row, ranking in enumerate(served):
        own = scores[row, : len(ranking.scores)]
        expected = torch.tensor(ranking.scores)
        if decoding == "one_step":
            own = own.log_softmax(dim=0)
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=1e-4)


def test_later_steps_read_the_choices_of_the_teacher(folder, encoder):
    """Row k equals the scores after a prompt with the teacher's first k passages appended."""
    model, batch = model_and_batch(folder, encoder, stepwise=True)
    objective = PEObjective(stepwise_listmle, stepwise=True)
    scores = objective._scores(model, batch)
    for row, (item, last) in enumerate(zip(LISTS, batch["last_index"].tolist(), strict=True)):
        n = len(item.passages)
        embeddings, passages = model.embed(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        for step in range(n):
            prompt = embeddings[row : row + 1, : last + 1 + step]
            state = model.transformer(inputs_embeds=prompt, use_cache=False).last_hidden_state[0, -1]
            torch.testing.assert_close(scores[row, step, :n], passages[row, :n] @ state, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stepwise", [False, True])
def test_loss_is_the_weighted_sum_of_its_parts(folder, encoder, stepwise):
    model, batch = model_and_batch(folder, encoder, stepwise)
    loss = stepwise_listmle if stepwise else listmle
    vectors, with_text, with_kl, full = (
        PEObjective(loss, stepwise, *weights).terms(model, batch).sum()
        for weights in ((0, 0), (1, 0), (0, 1), (0.5, 0.2))
    )
    expected = vectors + 0.5 * (with_text - vectors) + 0.2 * (with_kl - vectors)
    torch.testing.assert_close(full, expected, atol=1e-5, rtol=1e-5)
    assert with_text - vectors != vectors


def test_stepwise_divergence_is_the_sum_over_steps_of_the_remaining_passages(folder, encoder):
    model, batch = model_and_batch(folder, encoder, stepwise=True)
    objective = PEObjective(stepwise_listmle, stepwise=True, kl_weight=1)
    plain, text = objective._scores(model, batch), objective._scores(model, batch, "text_")
    expected = []
    for row, item in enumerate(LISTS):
        order = batch["order"][row].tolist()
        expected.append(torch.tensor(0.0))
        for step in range(len(item.passages) - 1):
            left = torch.tensor(order[step : len(item.passages)])
            everything = torch.ones(1, len(left), dtype=torch.bool)
            expected[-1] = expected[-1] + kl(plain[row, step, left][None], text[row, step, left][None], everything)
    found = objective.terms(model, batch).sum() - replace(objective, kl_weight=0.0).terms(model, batch).sum()
    torch.testing.assert_close(found, torch.stack(expected).mean(), atol=1e-4, rtol=1e-4)


def test_divergence_in_one_step_has_no_gradient_for_the_scores_with_text(folder, encoder):
    _, batch = model_and_batch(folder, encoder)
    scores = torch.randn(6, 5, requires_grad=True)
    text_scores = torch.randn(6, 5, requires_grad=True)
    PEObjective(listmle, kl_weight=1)._divergence(scores, text_scores, batch).backward()
    assert scores.grad is not None
    assert text_scores.grad is None


TEXTS = ["A flea lives a year.", "Ice flows.", "Four strings and a bow, played between the knees of a musician."]


@pytest.fixture
def base(encoder: Encoder, tmp_path: Path) -> PEBase:
    loaded = load_pe_base(write_published(tmp_path / "published", encoder), encoder, None)
    loaded.tokenizer.eos_token = "<RANK>"
    return loaded


@pytest.fixture
def collator(base: PEBase, encoder: Encoder) -> AlignCollator:
    prompts = VectorPrompts(load_template(ALIGN_TEMPLATE), base.tokenizer, in_chat=True, text_tokens=16)
    table = VectorTable(encoder.encode_passages, TEXTS, QUIET)
    return AlignCollator(prompts, table, base.tokenizer)


def test_text_follows_one_vector(base, collator):
    batch = collator(TEXTS)
    assert ((batch["input_ids"] == PASSAGE_SLOT).sum(dim=1) == 1).all()
    answer = batch["labels"][1][batch["labels"][1] != IGNORE_INDEX]
    assert base.tokenizer.decode(answer[:-1]).strip() == TEXTS[1]
    assert answer[-1] == base.tokenizer.eos_token_id


def test_answer_is_divided_into_tokens_as_in_the_whole_conversation(base, collator):
    turns = {TEXTS[0]: AlignTurns("Read ", " aloud.", "[One] sentence.")}
    ids = replace(collator, turns=turns)(TEXTS[:1])["input_ids"][0]
    said = [("user", "Read <PLACEHOLDER> aloud."), ("assistant", "[One] sentence.")]
    whole = base.tokenizer.apply_chat_template([{"role": role, "content": text} for role, text in said], tokenize=False)
    expected = base.tokenizer(whole, add_special_tokens=False)["input_ids"]
    mark = base.tokenizer.convert_tokens_to_ids("<PLACEHOLDER>")
    assert ids.tolist() == [PASSAGE_SLOT if token == mark else token for token in expected]
    assert collator(TEXTS[:1])["input_ids"][0].tolist() != ids.tolist()


def test_loss_is_the_mean_over_all_tokens_of_texts(base, collator):
    """Compared with one text at a time and logits at every position."""
    batch = collator(TEXTS)
    loss = AlignObjective().terms(base.model, batch).sum()
    total, count = torch.tensor(0.0), 0
    for text in TEXTS:
        one = collator([text])
        states, _ = base.model(one["input_ids"], one["vectors"], one["mask"], one["order"])
        log_probs = base.model.logits(states).log_softmax(dim=-1)[0]
        for index, label in enumerate(one["labels"][0].tolist()):
            if label != IGNORE_INDEX:
                total, count = total - log_probs[index - 1, label], count + 1
    torch.testing.assert_close(loss, total / count, atol=1e-4, rtol=1e-4)
