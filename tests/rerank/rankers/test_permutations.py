"""Permutations in texts: the answer after a reasoning, and the order that it names, whatever a model wrote."""

import string
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.rankers.permutations import ParsedPermutation, answer_in, parse_permutation

ABC, ONE_TO_THREE = "ABC", ("1", "2", "3")
ONE_TO_TEN = tuple(str(number) for number in range(1, 11))
ALL_LETTERS = string.ascii_uppercase + string.ascii_lowercase


@pytest.mark.parametrize(
    ("text", "names", "permutation", "missing", "repeated", "unknown"),
    [
        # in the requested format
        ("[B] > [C] > [A]", ABC, (1, 2, 0), 0, 0, 0),
        ("[10] > [1]", ONE_TO_TEN, (9, 0, *range(1, 9)), 8, 0, 0),
        ("[a] > [B] > [A]", ALL_LETTERS[:27], (26, 1, 0, *range(2, 26)), 24, 0, 0),
        # missing, repeated, unknown
        ("", ABC, (0, 1, 2), 3, 0, 0),
        ("[C]", ABC, (2, 0, 1), 2, 0, 0),
        ("[C] > [A] > [C] > [B] > [A]", ABC, (2, 0, 1), 0, 2, 0),
        ("[D] > [B] > [Z] > [A]", ABC, (1, 0, 2), 1, 0, 2),
        ("[4] > [3] > [0] > [1] > [3]", ONE_TO_THREE, (2, 0, 1), 1, 1, 2),
        ("[A] > [B]", (), (), 0, 0, 2),
        # identifiers of one case, written in the other
        ("[b] > [C] > [a]", ABC, (1, 2, 0), 0, 0, 0),
        ("[B] > [C] > [A]", "abc", (1, 2, 0), 0, 0, 0),
        ("[b] > [B]", ABC, (1, 0, 2), 2, 1, 0),
        # surrounding text, white space, other layouts
        ("The order is [2] > [3] > [1], as 2 names the 20 days.", ONE_TO_THREE, (1, 2, 0), 0, 0, 0),
        ("Sure! A good one first:\n[C] > [B] > [A]</s>", ABC, (2, 1, 0), 0, 0, 0),
        ("[ c ] > [ b ] > [ a ]", "abc", (2, 1, 0), 0, 0, 0),
        ("1. [C]\n2. [A]\n3. [B]", ABC, (2, 0, 1), 0, 0, 0),
        # brackets left out
        ("2 > 3 > 1", ONE_TO_THREE, (1, 2, 0), 0, 0, 0),
        ("C > A > B", ABC, (2, 0, 1), 0, 0, 0),
        ("[3] > [2 > 1]", ONE_TO_THREE, (2, 1, 0), 0, 0, 0),
        # brackets left out where the text is ambiguous
        ("3", ONE_TO_THREE, (2, 0, 1), 2, 0, 0),
        ("I like C more than A", ABC, (2, 0, 1), 1, 0, 0),
        ("3 of them, 2 > all", ONE_TO_THREE, (2, 1, 0), 1, 0, 0),
        ("CB > AC", ABC, (0, 1, 2), 3, 0, 0),
        ("1.3 > 2.1", ONE_TO_THREE, (0, 1, 2), 3, 0, 0),
        ("[2] > [1], 3 is bad", ONE_TO_THREE, (1, 0, 2), 1, 0, 0),
        ("[AB] > [see below]", ABC, (0, 1, 2), 3, 0, 0),
    ],
)
def test_answer_is_parsed(text, names, permutation, missing, repeated, unknown):
    parsed = parse_permutation(text, names)
    assert parsed == ParsedPermutation(permutation, missing, repeated, unknown)


ONE_TO_FIVE, A_TO_E = ONE_TO_TEN[:5], "ABCDE"
#: What RankLLM reads in a text with letters: each run of letters as one number, such as 312 in "CAB".
NOTHING = (0, 1, 2, 3, 4)


def rank_llm_reads(text: str, names: Sequence[str]) -> tuple[int, ...]:
    """RankLLM's rule (`_clean_response` and `receive_permutation`), written anew for five passages."""
    text = text.rpartition("</think>")[2]
    for digits in ("⁰¹²³⁴⁵⁶⁷⁸⁹", "₀₁₂₃₄₅₆₇₈₉", "０１２３４５６７８９"):
        text = text.translate(str.maketrans(digits, "0123456789"))
    for digits in ("①②③④⑤⑥⑦⑧⑨", "❶❷❸❹❺❻❼❽❾"):
        text = text.translate(str.maketrans(digits, "123456789"))
    if names is A_TO_E:
        text = "".join(str(ord(char) - 64) if char.isalpha() else " " for char in text)
    else:
        text = "".join(char if char.isdigit() else " " for char in text)
    named = dict.fromkeys(int(number) - 1 for number in text.split() if 0 <= int(number) - 1 < 5)
    return (*named, *(place for place in range(5) if place not in named))


@pytest.mark.parametrize(
    ("text", "names", "permutation"),
    [
        # both read these alike
        ("[3] > [1] > [2] > [5] > [4]", ONE_TO_FIVE, (2, 0, 1, 4, 3)),
        ("3 1 2", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("3, 1, 2", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("3\n1\n2", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("C A B", A_TO_E, (2, 0, 1, 3, 4)),
        ("C, A, B", A_TO_E, (2, 0, 1, 3, 4)),
        ("[03] > [01]", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("(3) > (1)", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("(3) (1) (2)", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("[３] > [１]", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("③ > ① > ②", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("❸ ❶", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("³ > ₁", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("[3], 1, [2]", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("[3] > 1; [2]", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("3 → 1 → 2", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("Passage 3 is best, then passage 1, then 2.", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("**3** > **1**", ONE_TO_FIVE, (2, 0, 1, 3, 4)),
        ("[7] > [3] > [1] >4]", ONE_TO_FIVE, (2, 0, 3, 1, 4)),
        ("", ONE_TO_FIVE, NOTHING),
    ],
)
def test_answer_is_read_as_by_rank_llm(text, names, permutation):
    assert rank_llm_reads(text, names) == permutation
    assert parse_permutation(text, names).permutation == permutation


@pytest.mark.parametrize(
    ("text", "names", "rank_llm", "ours"),
    [
        # numbers of the sentence around an order
        ("The order of the 5 passages: [3] > [1] > [2]", ONE_TO_FIVE, (4, 2, 0, 1, 3), (2, 0, 1, 3, 4)),
        ("[3] > [1], since 2 is off topic, 4 too", ONE_TO_FIVE, (2, 0, 1, 3, 4), (2, 0, 1, 3, 4)),
        # line numbers of a list
        ("1. 3\n2. 1\n3. 2", ONE_TO_FIVE, (0, 2, 1, 3, 4), (2, 0, 1, 3, 4)),
        ("1. [3]\n2. [1]", ONE_TO_FIVE, (0, 2, 1, 3, 4), (2, 0, 1, 3, 4)),
        # letters in words
        ("Passage C, then A and B.", A_TO_E, (2, 0, 1, 3, 4), (2, 0, 1, 3, 4)),
        ("I would say: C > A", A_TO_E, (2, 0, 1, 3, 4), (2, 0, 1, 3, 4)),
        ("a sentence about B", A_TO_E, (1, 0, 2, 3, 4), (1, 0, 2, 3, 4)),
        # a letter in the other case, and a letter of another alphabet
        ("[c] > [a]", A_TO_E, NOTHING, (2, 0, 1, 3, 4)),
        ("Ｃ > Ａ", A_TO_E, NOTHING, (2, 0, 1, 3, 4)),
        # decimals
        ("1.3 > 2.1", ONE_TO_FIVE, (0, 2, 1, 3, 4), NOTHING),
    ],
)
def test_answer_is_read_otherwise_than_by_rank_llm_where_it_takes_any_digit_or_letter(text, names, rank_llm, ours):
    assert rank_llm_reads(text, names) == rank_llm
    assert parse_permutation(text, names).permutation == ours


@pytest.mark.parametrize(
    ("text", "repairs"),
    [("[2] > [1] > [3]", 0), ("[2] > [1]", 1), ("[2] > [9] > [1]", 1), ("[2] > [2] > [2]", 2), ("[9] [9] [9] [9]", 3)],
)
def test_repairs_are_places_of_the_order_and_a_wrong_identifier_for_a_missing_one_is_one(text, repairs):
    assert parse_permutation(text, ONE_TO_THREE).repairs == repairs


names_of_windows = st.sampled_from([ALL_LETTERS, ALL_LETTERS[26:], tuple(str(number) for number in range(1, 101))])
#: Text with many identifiers, brackets and separators.
parts_of_answers = st.lists(st.sampled_from(["[A]", "[2]", "B", "[", " > ", ",", "30"]))
answers = st.text() | st.text("[]><, ABab12") | parts_of_answers.map("".join)


@given(answers, names_of_windows, st.integers(0, 52))
def test_any_text_is_parsed_to_a_permutation(text, names, n):
    n = min(n, len(names))
    parsed = parse_permutation(text, names[:n])
    assert sorted(parsed.permutation) == list(range(n))
    assert 0 <= parsed.missing <= n
    unnamed = parsed.permutation[n - parsed.missing :]
    assert list(unnamed) == sorted(unnamed)
    assert parsed.repeated == 0 or parsed.missing < n, "an identifier is repeated although none is named"


#: What a reasoning model writes about three passages, with drafts of its answer in the reasoning.
THOUGHT = "Passage [1] names the bird. So far [1] > [3] > [2].\nWait, [2] explains it: <answer> comes next."


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[2] > [1]", "[2] > [1]"),
        ("", ""),
        ("<think>[1] > [2]? No.</think>\n\n[2] > [1]", "\n\n[2] > [1]"),
        ("[1] > [2]? No.</think>[2] > [1]", "[2] > [1]"),
        (f"<think>{THOUGHT}</think>\n<answer> [2] > [1] > [3] </answer>", " [2] > [1] > [3] "),
        (f"<think>{THOUGHT}</think> The order is <answer>[2] > [1]</answer>, I am sure.", "[2] > [1]"),
        (f"<think>{THOUGHT}</think><think>again</think>[2] > [1]", "[2] > [1]"),
        ("<answer>[1] > [2]</answer> no: <answer>[2] > [1]</answer>", "[2] > [1]"),
        # cut off
        ("<think>[1] is about", None),
        (f"<think>{THOUGHT}", None),
        (f"<think>{THOUGHT}</think>\n \n", None),
        (f"<think>{THOUGHT}</think>\n<answer> [2] > [", " [2] > ["),
        ("[2] > [1]<think>or is it", "[2] > [1]"),
        # an answer without the end of the reasoning
        ("<think>It is clear. <answer> [2] > [1] </answer>", " [2] > [1] "),
        ("<think>It is clear. </answer> [2] > [1] <answer>", None),
        ("<think>It is clear. <answer></answer>", None),
    ],
)
def test_answer_is_what_follows_the_reasoning(text, answer):
    assert answer_in(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (THOUGHT, None),
        ("", None),
        (f"{THOUGHT}</think>[2] > [1]", "[2] > [1]"),
        ("clear: <answer>[2] > [1]</answer>", "[2] > [1]"),
    ],
)
def test_text_after_a_prompt_that_opens_a_reasoning_begins_inside_it(text, answer):
    assert answer_in(text, is_reasoning=True) == answer


@pytest.mark.parametrize(
    ("text", "whole", "last"),
    [
        ("First [1] > [2] > [3], but better [3] > [2] > [1].", (0, 1, 2), (2, 1, 0)),
        ("[3] > [1] > [2]; [2] is about lamps.", (2, 0, 1), (2, 0, 1)),
        ("[2]\n[3]\n[1]", (1, 2, 0), (1, 2, 0)),
        ("[2]", (1, 0, 2), (1, 0, 2)),
        ("none of them", (0, 1, 2), (0, 1, 2)),
    ],
)
def test_last_chain_counts_where_a_model_writes_drafts(text, whole, last):
    assert parse_permutation(text, ONE_TO_THREE).permutation == whole
    assert parse_permutation(text, ONE_TO_THREE, last_chain=True).permutation == last


marks = st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "[2] > [1]", " ", "<", "x"]))


@given(marks.map("".join), st.booleans())
def test_answer_has_no_mark_of_a_reasoning_before_it_and_is_part_of_the_text(text, is_reasoning):
    answer = answer_in(text, is_reasoning)
    assert answer is None or (answer in text and "</think>" not in answer and "<answer>" not in answer)


def test_million_marks_are_read_in_one_pass():
    assert answer_in("<answer>" * 1_000_000 + "<think>" + "<answer>" * 1_000_000) is not None
    assert answer_in("<think>" + "<answer>" * 1_000_000) is None
