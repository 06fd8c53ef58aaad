"""Batches and loss of FIRST: the prompts, bracket and identifiers of serving, and slow computations of the loss."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rerank_training.first.objective import FirstCollator, FirstExample, FirstObjective, PromptSettings
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import ranknet
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import load_template
from rerank.rankers.first import FirstRanker
from rerank.rankers.permutations import parse_permutation
from rerank.types import Passage, Query
from tests.causal_lms import SIZES, write_causal_lm
from tests.fakes import prepared_window, ranking_of
from tests.slow_losses import slow_ranknet
from tests.small_tokenizers import byte_level, byte_level_numbers, metaspace, uncased
from tests.word_lists import word_lists

FAMILIES: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "metaspace": metaspace,
    "byte-level": byte_level,
    "byte-level-numbers": byte_level_numbers,
    "uncased": uncased,
}
#: The letters O (15 passages) and Q (17) are exceptions in byte-level tokenizers.
each_size = pytest.mark.parametrize("n", [2, 15, 17])


def ranked_list(n: int, text: str = "a flea lives [A] year", query: str = "how long does a flea live") -> TrainingList:
    """Passages of different lengths, the best one in the middle."""
    passages = tuple(Passage(f"d{i}", " ".join([text] * (1 + i % 3)) + f" {i}") for i in range(n))
    return TrainingList(Query(query, query_id="q7"), passages, tuple(-abs(i - n / 2 + 0.1) for i in range(n)))


def examples_of(
    tokenizer: PreTrainedTokenizerBase,
    kind: IdentifierKind = IdentifierKind.LETTERS,
    context_tokens: int = SIZES["max_position_embeddings"],  # type: ignore[assignment]
    passage_tokens: int = 64,
    with_answer: bool = True,
) -> FirstCollator:
    prompt = PromptSettings(load_template("first"), kind, window_size=20, passage_tokens=passage_tokens)
    return FirstCollator(tokenizer, prompt, context_tokens, with_answer)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lms") / family, "llama", FAMILIES[family]())


@pytest.fixture(scope="module")
def ranker(checkpoint: Path) -> FirstRanker:
    return FirstRanker(checkpoint, "first", device="cpu", passage_tokens=20)


@each_size
def test_prompt_and_bracket_are_those_of_serving(ranker, family, n):
    """With 20 tokens per passage, so that the longer ones are truncated."""
    item = ranked_list(n)
    encoded = ranker.encode(prepared_window(ranker, item.query, item.passages))
    example = examples_of(FAMILIES[family](), passage_tokens=20).example(item)
    assert tuple(example.token_ids[: example.bracket_index + 1]) == encoded.prompts[0]
    assert encoded.truncated or n == 2


@each_size
def test_logits_at_the_bracket_are_the_scores_of_serving(ranker, checkpoint, family, n):
    examples = examples_of(FAMILIES[family](), passage_tokens=20)
    items = [ranked_list(n), ranked_list(2, query="what jumps")]
    batch = examples(items)
    objective = FirstObjective("joint", ranknet, 1.0, examples.identifiers.token_ids)
    with torch.no_grad():
        scores = objective.scores(AutoModelForCausalLM.from_pretrained(checkpoint), batch)
    for row, item in zip(scores, items, strict=True):
        served = ranking_of(ranker, item.query, item.passages).scores
        trained = torch.log_softmax(row[: len(item.passages)], dim=0)
        assert served == pytest.approx(trained.tolist(), abs=1e-4)


@each_size
def test_answer_is_the_order_and_the_end(family, n):
    tokenizer = FAMILIES[family]()
    examples = examples_of(tokenizer)
    item = ranked_list(n)
    example = examples.example(item)
    text = tokenizer.decode(example.token_ids[example.bracket_index :], skip_special_tokens=True)
    names = examples.identifiers.texts[:n]
    best_first = sorted(range(n), key=lambda position: -item.relevance[position])
    assert text.replace(" ", "") == ">".join(f"[{names[position]}]" for position in best_first)
    parsed = parse_permutation(text, list(names))
    assert (list(parsed.permutation), parsed.repeated, parsed.unknown, parsed.missing) == (best_first, 0, 0, 0)
    assert example.token_ids[-1] == tokenizer.eos_token_id or tokenizer.eos_token_id is None


def test_short_answer_leaves_the_context_to_the_passages():
    """An answer of 999 numbers would fill the context; one of three takes a few tokens."""
    examples = examples_of(byte_level_numbers(), IdentifierKind.NUMBERS, context_tokens=2048, passage_tokens=30)
    without = examples_of(byte_level_numbers(), IdentifierKind.NUMBERS, 2048, 30, with_answer=False)
    example = examples.example(item := ranked_list(3))
    assert example.token_ids[: example.bracket_index + 1] == without.example(item).token_ids


@pytest.mark.parametrize("context_tokens", [420, 500, 900])
def test_prompt_and_answer_fit_the_context(context_tokens):
    examples = examples_of(metaspace(), context_tokens=context_tokens, passage_tokens=400)
    example = examples.example(ranked_list(5, "word " * 100))
    assert context_tokens - 5 * 8 <= len(example.token_ids) <= context_tokens


def test_list_with_too_long_a_query_is_named():
    examples = examples_of(metaspace(), context_tokens=420)
    with pytest.raises(ConfigError, match=r"list 'q7': query: .*, or remove the list"):
        examples.example(ranked_list(5, query="long " * 100))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    folder = write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", uncased())
    loaded: nn.Module = AutoModelForCausalLM.from_pretrained(Path(folder))
    return loaded.eval()


@pytest.fixture(scope="module")
def examples() -> FirstCollator:
    prompt = PromptSettings(load_template("first_small"), IdentifierKind.LETTERS, window_size=4, passage_tokens=20)
    return FirstCollator(uncased(), prompt, 4096)


@pytest.fixture(scope="module")
def windows() -> list[TrainingList]:
    """Three windows of 4, 2 and 3 passages."""
    sizes = ((0, 1, 2, 3), (0, 1), (1, 2, 3))
    return [
        TrainingList(item.query, item.passages, tuple(float(i % 3) for i in range(4))).select(positions)
        for item, positions in zip(word_lists(3), sizes, strict=True)
    ]


# --- slow


def full_logits(model: nn.Module, example: FirstExample) -> Tensor:
    """(T, vocabulary) logits of one window without padding."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([example.token_ids])).logits
    return logits[0]


def slow_rank(model: nn.Module, examples: FirstCollator, items: list[TrainingList]) -> float:
    losses = []
    for item in items:
        logits = full_logits(model, example := examples.example(item))
        ids = examples.identifiers.token_ids[: len(item.passages)]
        losses.append(slow_ranknet([logits[example.bracket_index, one].item() for one in ids], list(item.relevance)))
    return sum(losses) / len(losses)


def slow_lm(model: nn.Module, examples: FirstCollator, items: list[TrainingList]) -> float:
    """Mean over the tokens of all answers, the opening bracket included."""
    losses = []
    for item in items:
        logits = full_logits(model, example := examples.example(item))
        for at in range(example.bracket_index - 1, len(example.token_ids) - 1):
            losses.append(-torch.log_softmax(logits[at], dim=0)[example.token_ids[at + 1]].item())
    return sum(losses) / len(losses)


# --- properties


@pytest.mark.parametrize(
    ("objective", "rank_weight", "lm_share", "rank_share"),
    [("rank", 10.0, 0, 1), ("lm", 10.0, 1, 0), ("joint", 10.0, 1, 10), ("joint", 0.5, 1, 0.5)],
)
def test_loss_is_that_of_the_answer_and_that_of_the_identifiers_at_the_bracket(
    model, examples, windows, objective, rank_weight, lm_share, rank_share
):
    computed = FirstObjective(objective, ranknet, rank_weight, examples.identifiers.token_ids)
    found = computed.terms(model, examples(windows)).sum().item()
    expected = lm_share * slow_lm(model, examples, windows) + rank_share * slow_rank(model, examples, windows)
    assert found == pytest.approx(expected, rel=1e-5)
