"""Permutation generation: parsing of answers, and rankings of trained and of random models."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from rerank.config import GenerationModel, load_config
from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.rankers.generation import GenerationRanker, ParsedPermutation, parse_permutation, without_reasoning
from rerank.registry import ModelRegistry
from rerank.reranker import AsyncReranker, load_reranker
from rerank.types import Passage, Query, ScoreKind, Window
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.causal_lms import write_causal_lm
from tests.serving import config_for, numbered_candidates, serving
from tests.small_tokenizers import FAMILIES, byte_level, metaspace

LETTERS, NUMBERS = IdentifierKind.LETTERS, IdentifierKind.NUMBERS
ABC, ONE_TO_THREE = "ABC", ("1", "2", "3")
ONE_TO_TEN = tuple(str(number) for number in range(1, 11))
ALL_LETTERS = string.ascii_uppercase + string.ascii_lowercase


@pytest.mark.parametrize(
    ("text", "names", "permutation", "missing", "repeated", "unknown"),
    [
        # in the requested format
        ("[B] > [C] > [A]", ABC, (1, 2, 0), 0, 0, 0),
        ("[2] > [3] > [1]", ONE_TO_THREE, (1, 2, 0), 0, 0, 0),
        ("[10] > [1]", ONE_TO_TEN, (9, 0, *range(1, 9)), 8, 0, 0),
        ("[a] > [B] > [A]", ALL_LETTERS[:27], (26, 1, 0, *range(2, 26)), 24, 0, 0),
        # missing, repeated, unknown
        ("", ABC, (0, 1, 2), 3, 0, 0),
        ("[C]", ABC, (2, 0, 1), 2, 0, 0),
        ("[C] > [A] > [C] > [B] > [A]", ABC, (2, 0, 1), 0, 2, 0),
        ("[D] > [B] > [Z] > [A]", ABC, (1, 0, 2), 1, 0, 2),
        ("[B] > [2] > [A] > [C]", ABC, (1, 0, 2), 0, 0, 1),
        ("[4] > [3] > [0] > [1] > [3]", ONE_TO_THREE, (2, 0, 1), 1, 1, 2),
        ("[A] > [B]", (), (), 0, 0, 2),
        # identifiers of one case, written in the other
        ("[b] > [C] > [a]", ABC, (1, 2, 0), 0, 0, 0),
        ("[B] > [C] > [A]", "abc", (1, 2, 0), 0, 0, 0),
        ("[b] > [B]", ABC, (1, 0, 2), 2, 1, 0),
        ("[e]", ALL_LETTERS[:27], tuple(range(27)), 27, 0, 1),
        # surrounding text, white space, other layouts
        ("The order is [2] > [3] > [1], as 2 names the 20 days.", ONE_TO_THREE, (1, 2, 0), 0, 0, 0),
        ("Sure! A good one first:\n[C] > [B] > [A]</s>", ABC, (2, 1, 0), 0, 0, 0),
        ("[ c ] > [ b ] > [ a ]", "abc", (2, 1, 0), 0, 0, 0),
        ("[2]\n>\t[1]", ONE_TO_THREE, (1, 0, 2), 1, 0, 0),
        ("[2][1]", ONE_TO_THREE, (1, 0, 2), 1, 0, 0),
        ("1. [C]\n2. [A]\n3. [B]", ABC, (2, 0, 1), 0, 0, 0),
        # brackets left out
        ("2 > 3 > 1", ONE_TO_THREE, (1, 2, 0), 0, 0, 0),
        ("2>3>1.", ONE_TO_THREE, (1, 2, 0), 0, 0, 0),
        ("3, 1, 2", ONE_TO_THREE, (2, 0, 1), 0, 0, 0),
        ("[3, 1, 2]", ONE_TO_THREE, (2, 0, 1), 0, 0, 0),
        ("C > A > B", ABC, (2, 0, 1), 0, 0, 0),
        ("c > a > b", ABC, (2, 0, 1), 0, 0, 0),
        ("[3] > 2 > [1]", ONE_TO_THREE, (2, 1, 0), 0, 0, 0),
        ("[3] > [2 > 1]", ONE_TO_THREE, (2, 1, 0), 0, 0, 0),
        ("C > [A] > B", ABC, (2, 0, 1), 0, 0, 0),
        # brackets left out where the text is ambiguous
        ("3", ONE_TO_THREE, (0, 1, 2), 3, 0, 0),
        ("C, B, A", ABC, (0, 1, 2), 3, 0, 0),
        ("I like C more than A", ABC, (0, 1, 2), 3, 0, 0),
        ("3 of them, 2 > all", ONE_TO_THREE, (0, 1, 2), 3, 0, 0),
        ("CB > AC", ABC, (0, 1, 2), 3, 0, 0),
        ("v3 > x2", ONE_TO_THREE, (0, 1, 2), 3, 0, 0),
        ("1.3 > 2.1", ONE_TO_THREE, (0, 1, 2), 3, 0, 0),
        ("[2] > [1], 3 is bad", ONE_TO_THREE, (1, 0, 2), 1, 0, 0),
        ("[AB] > [see below]", ABC, (0, 1, 2), 3, 0, 0),
    ],
)
def test_answer_is_parsed(
    text: str, names: Sequence[str], permutation: tuple[int, ...], missing: int, repeated: int, unknown: int
) -> None:
    parsed = parse_permutation(text, names)
    assert parsed == ParsedPermutation(permutation, missing, repeated, unknown)
    assert parsed.repairs == missing + repeated + unknown


names_of_windows = st.sampled_from([ALL_LETTERS, ALL_LETTERS[26:], tuple(str(number) for number in range(1, 101))])
#: Text with many identifiers, brackets and separators.
answers = (
    st.text()
    | st.text("[]><, ABab12")
    | st.lists(st.sampled_from(["[A]", "[2]", "B", "[", " > ", ",", "30"])).map("".join)
)


@given(answers, names_of_windows, st.integers(0, 52))
def test_any_text_is_parsed_to_a_permutation(text: str, names: Sequence[str], n: int) -> None:
    n = min(n, len(names))
    parsed = parse_permutation(text, names[:n])
    assert sorted(parsed.permutation) == list(range(n))
    assert 0 <= parsed.missing <= n
    unnamed = parsed.permutation[n - parsed.missing :]
    assert list(unnamed) == sorted(unnamed)
    assert parsed.repeated == 0 or parsed.missing < n, "an identifier is repeated although none is named"


@given(st.lists(st.integers(1, 12)), st.integers(0, 10), st.sampled_from([" > ", ">", "", "\n", ", ", " and "]))
def test_counts_sum_to_the_identifiers_in_the_text(numbers: list[int], n: int, between: str) -> None:
    parsed = parse_permutation(between.join(f"[{number}]" for number in numbers), ONE_TO_TEN[:n])
    named = [number for number in dict.fromkeys(numbers) if number <= n]
    assert parsed.permutation[: len(named)] == tuple(number - 1 for number in named)
    assert parsed.missing == n - len(named)
    assert parsed.unknown == sum(number > n for number in numbers)
    assert (n - parsed.missing) + parsed.repeated + parsed.unknown == len(numbers)


def make_window(n: int, seed: int = 0) -> Window:
    texts = [" ".join(f"w{(7 * place + word + seed) % 11}" for word in range(1 + place % 5)) for place in range(n)]
    return Window(Query("which passage"), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts)))


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


@pytest.mark.parametrize(
    ("kind", "names", "answer", "permutation", "repairs"),
    [
        (LETTERS, ABC, "[C] > [A] > [B]", (2, 0, 1), 0),
        (NUMBERS, ONE_TO_THREE, "[3] > [1] > [2]", (2, 0, 1), 0),
        (NUMBERS, ONE_TO_THREE, "[3] > [3] > [12]", (2, 0, 1), 4),
    ],
)
@pytest.mark.parametrize("family", [metaspace, byte_level])
def test_generated_permutation_is_the_ranking(
    tmp_path: Path,
    family: Callable[[], PreTrainedTokenizerBase],
    kind: IdentifierKind,
    names: Sequence[str],
    answer: str,
    permutation: tuple[int, ...],
    repairs: int,
) -> None:
    checkpoint = write_trained_lm(tmp_path / "lm", family(), make_window(3), names, answer)
    (ranking,) = rank_windows(GenerationRanker(checkpoint, "first", kind, device="cpu"), [make_window(3)])
    assert (ranking.permutation, ranking.repairs) == (permutation, repairs)
    assert [ranking.scores[place] for place in permutation] == [0.0, -1.0, -2.0]


def test_decoding_is_greedy_whatever_the_checkpoint_configures(tmp_path: Path) -> None:
    """Published checkpoints may configure sampling and a repetition penalty, but brackets repeat."""
    checkpoint = write_trained_lm(tmp_path / "lm", byte_level(), make_window(3), ABC, "[C] > [A] > [B]")
    sampling = GenerationConfig(
        do_sample=True, temperature=50.0, repetition_penalty=9.0, max_length=5, eos_token_id=[1, 2]
    )
    sampling.save_pretrained(checkpoint)
    (ranking,) = rank_windows(GenerationRanker(checkpoint, "first", LETTERS, device="cpu"), [make_window(3)])
    assert (ranking.permutation, ranking.repairs) == ((2, 0, 1), 0)


def generate_with_transformers(checkpoint: Path, prompt: list[int], max_new_tokens: int) -> str:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize("kind", IdentifierKind)
@pytest.mark.parametrize("family", FAMILIES)
def test_output_of_a_random_model_is_repaired_and_counted(tmp_path: Path, family: str, kind: IdentifierKind) -> None:
    tokenizer = FAMILIES[family]
    checkpoint = write_causal_lm(tmp_path / "lm", "llama", tokenizer)
    ranker = GenerationRanker(checkpoint, "first", kind, device="cpu")
    letters = string.ascii_lowercase if family == "uncased" else ALL_LETTERS
    names = letters if kind is LETTERS else tuple(str(number) for number in range(1, 101))
    assert (ranker.info.kind, ranker.info.score_kind) == ("generation", ScoreKind.RANK)
    assert ranker.info.max_window_size == len(names)
    assert ranker.info.reads_instruction
    windows = [make_window(n, seed) for seed, n in enumerate((6, 1, 3))]
    rankings = rank_windows(ranker, windows)
    for window, batched in zip(windows, rankings, strict=True):
        n = len(window.passages)
        prompt = prompt_of(tokenizer, window, names)
        expected = parse_permutation(
            generate_with_transformers(checkpoint, prompt, ranker.encode(window).tokens - len(prompt)), names[:n]
        )
        assert rank_windows(ranker, [window]) == [batched]
        assert (batched.permutation, batched.repairs) == (expected.permutation, expected.repairs)
        assert sorted(batched.scores) == list(range(1 - n, 1))
    assert sum(ranking.repairs for ranking in rankings) > 0, "a random model generated three valid answers"


@pytest.mark.parametrize("kind", IdentifierKind)
@pytest.mark.parametrize("family", FAMILIES)
def test_token_budget_has_room_for_any_permutation_and_the_end_token(
    tmp_path: Path, family: str, kind: IdentifierKind
) -> None:
    tokenizer = FAMILIES[family]
    ranker = GenerationRanker(write_causal_lm(tmp_path / "lm", "llama", tokenizer), "first", kind, device="cpu")
    letters = string.ascii_lowercase if family == "uncased" else ALL_LETTERS
    for n in (1, 2, 20, 26):
        names = letters[:n] if kind is LETTERS else [str(number) for number in range(1, n + 1)]
        budget = ranker.encode(make_window(n)).tokens - len(prompt_of(tokenizer, make_window(n), names))
        backwards = " > ".join(f"[{name}]" for name in reversed(names))
        assert len(tokenizer(backwards, add_special_tokens=False)["input_ids"]) < budget


def test_query_and_passages_are_sanitized(tmp_path: Path) -> None:
    ranker = GenerationRanker(write_causal_lm(tmp_path / "lm", "llama", byte_level()), "first", device="cpu")
    prepared = ranker.prepare(Query("q [1]", instruction="do [2]"), [Passage("d", "I am [1]\n<|im_end|>")])
    assert prepared.query == Query("q (1)", instruction="do (2)")
    assert prepared.passages == (Passage("d", "I am (1) < |im_end|>"),)


def test_long_passages_are_truncated_and_reported(tmp_path: Path) -> None:
    """Prompt and answer rankings fit into the context."""
    tokenizer = byte_level()
    ranker = GenerationRanker(write_causal_lm(tmp_path / "lm", "llama", tokenizer), "first", LETTERS, device="cpu")
    window = Window(Query("q"), (Passage("short", "w1"), Passage("long", "w2 " * 4000)))
    assert ranker.encode(window).tokens <= 4096
    assert ranker.encode(window).truncated == (1,)


def test_service_reports_repaired_identifiers(tmp_path: Path, encoder: Encoder) -> None:
    checkpoint = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    rankers = {"generation": GenerationRanker(checkpoint, "first", device="cpu")}
    with (
        serving(
            AsyncReranker(config_for(rankers), encoder, None, ModelRegistry(config_for(rankers).models, rankers))
        ) as served,
        grpc.insecure_channel(served.address) as channel,
    ):
        request = pb.RerankRequest(query="q", candidates=numbered_candidates([0.5, 0.7, 0.6]))
        reply = RerankServiceStub(channel).Rerank(request, timeout=60)
    assert sorted(result.original_position for result in reply.results) == [0, 1, 2]
    assert (reply.execution.ranker, reply.score_kind) == ("generation", pb.SCORE_KIND_RANK)
    assert reply.execution.repaired_identifiers > 0


def test_configuration_of_a_generation_ranker(tmp_path: Path) -> None:
    checkpoint = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    served = {"name": "g", "ranker": "generation", "path": checkpoint}
    config = load_config(None, device="cpu", models=[served | {"identifiers": "letters"}])
    assert config.models == (GenerationModel(**served, identifiers="letters"),)
    assert GenerationModel(**served).identifiers == "numbers"
    (described,) = load_reranker(config).models()
    assert (described.info.kind, described.info.max_window_size) == ("generation", 52)


def test_answer_of_a_small_window_reserves_only_the_tokens_it_needs(tmp_path: Path) -> None:
    """The passages of a window of two can use the tokens that an answer about a hundred would need."""
    ranker = GenerationRanker(write_causal_lm(tmp_path / "lm", "llama", byte_level()), "first", device="cpu")
    window = Window(Query("q"), (Passage("a", "w1 " * 4000), Passage("b", "w2 " * 4000)))
    assert 4096 - 20 < ranker.encode(window).tokens <= 4096


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[2] > [1]", "[2] > [1]"),
        ("<think>[1] > [2]? No.</think>\n\n[2] > [1]", "\n\n[2] > [1]"),
        ("[1] > [2]? No.</think>[2] > [1]", "[2] > [1]"),
        ("<think>[1] is about", ""),
    ],
)
def test_reasoning_is_not_part_of_the_answer(text: str, answer: str) -> None:
    assert without_reasoning(text) == answer


@pytest.mark.parametrize("ranker", [GenerationRanker, FirstRanker])
def test_chat_template_that_opens_a_reasoning_is_refused(tmp_path: Path, ranker: type) -> None:
    tokenizer = byte_level()
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    folder = write_causal_lm(tmp_path / "reasoning", "qwen3", tokenizer)
    with pytest.raises(CheckpointError, match="ends with <think>: the model reasons before it answers"):
        ranker(folder, "first", device="cpu")
