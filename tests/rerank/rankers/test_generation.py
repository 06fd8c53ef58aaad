"""Permutation generation: parsing of answers, and rankings of trained and of random models."""

import shutil
import string
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single
from rerank.errors import CheckpointError, ConfigError
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.rankers.generation import GenerationRanker
from rerank.rankers.permutations import parse_permutation
from rerank.types import Completeness, Query, ScoreKind, Window
from tests.causal_lms import write_causal_lm
from tests.fakes import window_of
from tests.small_tokenizers import FAMILIES, byte_level

LETTERS, NUMBERS = IdentifierKind.LETTERS, IdentifierKind.NUMBERS
ABC, ONE_TO_THREE, ANSWER = "ABC", ("1", "2", "3"), "[C] > [A] > [B]"
ALL_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def make_window(n: int, seed: int = 0) -> Window:
    texts = [" ".join(f"w{(7 * place + word + seed) % 11}" for word in range(1 + place % 5)) for place in range(n)]
    return window_of("which passage", texts)


def prompt_of(tokenizer: PreTrainedTokenizerBase, window: Window, names: Sequence[str]) -> list[int]:
    return ListwiseRenderer(load_template("first"), tokenizer, 4096, answer_tokens=600).prompt(window, names).token_ids


def write_trained_lm(
    folder: Path, tokenizer: PreTrainedTokenizerBase, window: Window, names: Sequence[str], answer: str
) -> Path:
    """A checkpoint trained to generate this answer to this window."""
    write_causal_lm(folder, "llama", tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = prompt_of(tokenizer, window, names)
    target = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    ids = torch.tensor([prompt + target])
    labels = torch.tensor([[-100] * len(prompt) + target])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        loss = model(input_ids=ids, labels=labels).loss
        if loss < 0.01:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.01, "the model did not learn its answer"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that answers `ANSWER` to three passages."""
    return write_trained_lm(tmp_path_factory.mktemp("lms") / "lm", byte_level(), make_window(3), ABC, ANSWER)


def test_generated_permutation_is_the_ranking(trained):
    (ranking,) = rank_windows(GenerationRanker(trained, "first", LETTERS, device="cpu"), [make_window(3)])
    assert (ranking.permutation, ranking.repairs) == ((2, 0, 1), 0)
    assert [ranking.scores[place] for place in (2, 0, 1)] == [0.0, -1.0, -2.0]


def test_written_tokens_and_their_time_are_told_from_those_of_the_prompt(trained):
    ranker = GenerationRanker(trained, "first", LETTERS)
    encoded = ranker.encode(make_window(3))
    start_s = time.perf_counter()
    (ranking,) = rank_windows(ranker, [make_window(3)])
    assert ranking.decode_cost.tokens == len(byte_level()(ANSWER, add_special_tokens=False)["input_ids"]) + 1  # the end
    assert 0 < ranking.decode_cost.ms < (time.perf_counter() - start_s) * 1000
    read = len(encoded.prompts[0])
    assert encoded.tokens_with(ranking.decode_cost) == read + ranking.decode_cost.tokens < encoded.tokens


def test_decoding_is_greedy_whatever_the_checkpoint_configures(trained, tmp_path):
    """Published checkpoints may configure sampling and a repetition penalty, but brackets repeat."""
    checkpoint = shutil.copytree(trained, tmp_path / "sampling")
    sampling = {"do_sample": True, "temperature": 50.0, "repetition_penalty": 9.0}
    GenerationConfig(**sampling, max_length=5, eos_token_id=[1, 2]).save_pretrained(checkpoint)
    (ranking,) = rank_windows(GenerationRanker(checkpoint, "first", LETTERS, device="cpu"), [make_window(3)])
    assert (ranking.permutation, ranking.repairs) == ((2, 0, 1), 0)


def test_order_of_exact_length_ends_neither_early_nor_late(trained):
    """As vLLM does for RankLLM with min_tokens = max_tokens: the model may not end before it wrote all of them."""
    template = load_template("first").with_style(PromptStyle(order_tokens="exact"))
    ranker = GenerationRanker(trained, template, LETTERS, device="cpu")
    for n in (2, 3, 7):
        order = " > ".join(f"[{name}]" for name in ALL_LETTERS[:n])
        bare = len(byte_level()(order)["input_ids"]) - 1  # RankLLM's count
        (ranking,) = rank_windows(ranker, [make_window(n)])
        assert ranking.decode_cost.tokens == bare
        assert (ranker.fewest_tokens(n), ranker.new_tokens(n)) == (bare, bare)
    free = GenerationRanker(trained, "first", LETTERS, device="cpu")
    (ranking,) = rank_windows(free, [make_window(2)])
    assert free.fewest_tokens(2) == 0
    assert ranking.decode_cost.tokens < free.new_tokens(2)


def generate_with_transformers(checkpoint: Path, prompt: list[int], max_new_tokens: int) -> str:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize(("family", "kind"), [("metaspace", LETTERS), ("byte-level numbers", NUMBERS)])
def test_output_of_a_random_model_is_repaired_and_counted(tmp_path, family, kind):
    tokenizer = FAMILIES[family]
    checkpoint = write_causal_lm(tmp_path / "lm", "llama", tokenizer)
    ranker = GenerationRanker(checkpoint, "first", kind, device="cpu")
    names = ALL_LETTERS if kind is LETTERS else tuple(str(number) for number in range(1, 101))
    assert (ranker.info.kind, ranker.info.score_kind) == ("generation", ScoreKind.RANK)
    assert ranker.info.max_window_size == len(names)
    assert ranker.info.reads_instruction
    windows = [make_window(n, seed) for seed, n in enumerate((6, 1))]
    rankings = rank_windows(ranker, windows)
    for window, batched in zip(windows, rankings, strict=True):
        n = len(window.passages)
        prompt = prompt_of(tokenizer, window, names)
        text = generate_with_transformers(checkpoint, prompt, ranker.encode(window).tokens - len(prompt))
        expected = parse_permutation(text, names[:n])
        assert rank_windows(ranker, [window]) == [batched]
        assert (batched.permutation, batched.repairs) == (expected.permutation, expected.repairs)
        assert sorted(batched.scores) == list(range(1 - n, 1))
    assert sum(ranking.repairs for ranking in rankings) > 0, "a random model generated two valid answers"


@pytest.mark.parametrize("kind", IdentifierKind)
@pytest.mark.parametrize("family", FAMILIES)
def test_token_budget_has_room_for_any_permutation_and_the_end_token(tmp_path, family, kind):
    tokenizer = FAMILIES[family]
    ranker = GenerationRanker(write_causal_lm(tmp_path / "lm", "llama", tokenizer), "first", kind, device="cpu")
    letters = string.ascii_lowercase if family == "uncased" else ALL_LETTERS
    for n in (1, 2, 20, 26):
        names = letters[:n] if kind is LETTERS else [str(number) for number in range(1, n + 1)]
        budget = ranker.encode(make_window(n)).tokens - len(prompt_of(tokenizer, make_window(n), names))
        backwards = " > ".join(f"[{name}]" for name in reversed(names))
        assert len(tokenizer(backwards, add_special_tokens=False)["input_ids"]) < budget


def reasoning_model(folder: Path) -> Path:
    """A random model whose chat template opens a reasoning."""
    tokenizer = byte_level()
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    return write_causal_lm(folder / "reasoning", "qwen3", tokenizer)


@pytest.mark.parametrize("ranker", [GenerationRanker, FirstRanker])
def test_chat_template_that_opens_a_reasoning_is_refused(tmp_path, ranker):
    with pytest.raises(CheckpointError, match="ends with <think>: the model reasons before it answers"):
        ranker(reasoning_model(tmp_path), "first", device="cpu")


async def test_window_whose_reasoning_has_no_end_keeps_its_order_and_the_reply_says_so(tmp_path):
    ranker = GenerationRanker(reasoning_model(tmp_path), "first", LETTERS, "cpu", thinking_tokens=24)
    at_once = GenerationRanker(write_causal_lm(tmp_path / "lm", "qwen3", byte_level()), "first", LETTERS, "cpu")
    (encoded,) = (ranker.encode(make_window(3)),)
    assert encoded.tokens - len(encoded.prompts[0]) == 24 + at_once.new_tokens(3) + 64 - 8
    (ranking,) = ranker.score([encoded])
    assert (ranking.is_unanswered, ranking.repairs, ranking.permutation) == (True, 0, (0, 1, 2))
    request = Request(Query("q"), tuple(make_window(5).passages), (RankStage("g", Single(3)),))
    async with Engine({"g": ranker}, EngineConfig()) as engine:
        found = await engine.run(request)
    assert [result.position for result in found.ranked] == [0, 1, 2, 3, 4]
    assert found.trace.completeness is Completeness.NONE
    reason = "1 of 1 windows kept their order, because the model had not ended its thinking"
    assert found.trace.reason.startswith(reason)


def test_thinking_is_part_of_the_prompt_where_the_chat_template_has_the_choice(tmp_path):
    tokenizer = byte_level()
    tokenizer.chat_template += "{% if not enable_thinking %}{{ '<think></think>' }}{% endif %}"
    folder = write_causal_lm(tmp_path / "lm", "qwen3", tokenizer)
    texts = []
    for thinking_tokens in (0, 9):
        ranker = GenerationRanker(folder, "first", device="cpu", thinking_tokens=thinking_tokens)
        texts.append(tokenizer.decode(ranker.encode(make_window(2)).prompts[0]))
    assert texts[0] == texts[1] + "<think></think>"


def test_thinking_that_leaves_no_room_for_a_prompt_is_refused_with_both_numbers(tmp_path):
    folder = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    with pytest.raises(ConfigError, match=r"thinking_tokens 4096 leaves no room.* 4096 tokens at most; use .* 2048"):
        GenerationRanker(folder, "first", device="cpu", thinking_tokens=4096)
