"""Finds the answer in a text that a language model wrote, and the order that it names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_IDENTIFIER = "(?:[A-Za-z]|[0-9]+)"
_IN_BRACKETS = rf"\[ ?{_IDENTIFIER} ?\]"
_IN_PARENTHESES = re.compile(rf"\( ?({_IDENTIFIER}) ?\)")
#: Numbers of the lines of a list, such as "2." in "2. C".
_LINE_NUMBER = re.compile(r"^\s*([0-9]+)[.):]\s+(?=\S)", re.MULTILINE)
_REASONING, _END_OF_REASONING = "<think>", "</think>"
_ANSWER, _END_OF_ANSWER = "<answer>", "</answer>"


@dataclass(frozen=True, slots=True)
class ParsedPermutation:
    """The permutation that a generated answer states, with counts of what was wrong.

    Attributes:
        permutation: indices in the window, best first; passages that the answer does not name come last, in order.
        missing: number of passages that the answer does not name.
        repeated: number of identifiers that repeat an earlier one.
        unknown: number of identifiers that name no passage of the window.
    """

    permutation: tuple[int, ...]
    missing: int
    repeated: int
    unknown: int

    @property
    def repairs(self) -> int:
        """The number of repairs: a wrong identifier in place of a missing one counts once."""
        return min(len(self.permutation), max(self.missing, self.repeated + self.unknown))


def answer_in(text: str, is_reasoning: bool = False) -> str | None:
    """Returns the text after the last </think>, or the part of it inside <answer>; None if there is no answer.

    A reasoning without an end has an answer only before it, or inside it between <answer> and </answer>.

    Args:
        is_reasoning: whether the text begins inside a reasoning, which the prompt has opened.
    """
    text = _REASONING + text if is_reasoning else text
    _, is_reasoned, answer = text.rpartition(_END_OF_REASONING)
    if not is_reasoned:
        before, is_reasoned, reasoning = text.partition(_REASONING)
        answer = _tagged(reasoning) or before
    if is_reasoned and not answer.strip():
        return None
    _, tag, tagged = answer.rpartition(_ANSWER)
    return tagged.partition(_END_OF_ANSWER)[0] if tag else answer


def _tagged(text: str) -> str:
    """Returns the last part of a text between <answer> and </answer>; empty without such a part."""
    end = text.rfind(_END_OF_ANSWER)
    begin = text.rfind(_ANSWER, 0, max(0, end))
    return text[begin + len(_ANSWER) : end] if begin >= 0 else ""


def parse_permutation(text: str, names: Sequence[str], last_chain: bool = False) -> ParsedPermutation:
    """Reads the order of the passages that a text names, and repairs it to a permutation.

    Args:
        text: the model's answer.
        names: the window's identifiers, either letters or numbers. If all letters have one case, the answer may use the
            other.
        last_chain: whether only the last chain of identifiers counts, such as "[2] > [1]", if there is one.

    RankLLM differs: it reads all digits of a text, also those of "the 20 passages", and every letter of a word.
    """
    indices = _indices(names)
    identified = [indices.get(identifier) for identifier in _identifiers(text, names, last_chain)]
    known = [index for index in identified if index is not None]
    named = list(dict.fromkeys(known))
    missing = sorted(set(range(len(names))) - set(named))
    return ParsedPermutation(
        permutation=(*named, *missing),
        missing=len(missing),
        repeated=len(known) - len(named),
        unknown=len(identified) - len(known),
    )


def _indices(names: Sequence[str]) -> dict[str, int]:
    """Identifier → index in the window; identifiers of one case are also accepted in the other case."""
    indices = {name: index for index, name in enumerate(names)}
    one_case = len({name.isupper() for name in names}) == 1
    return {name.swapcase(): index for name, index in indices.items()} | indices if one_case else indices


def _identifiers(text: str, names: Sequence[str], last_chain: bool) -> list[str]:
    """Returns the identifiers in a text, in its order.

    Identifiers are letters or numbers in brackets, or in parentheses if there are no brackets; bare ones in a chain
    such as "2 > 1"; and bare ones between two in brackets, as in "[3], 1, [2]". A text without any of these names
    passages by all its bare numbers or capitals, as in "3 1 2" and "Passage 3, then 1". The line numbers of a list do
    not count.
    """
    text = _in_ascii(text)
    line_numbers = _LINE_NUMBER.findall(text)
    is_list = len(line_numbers) > 1 and line_numbers == [str(number + 1) for number in range(len(line_numbers))]
    text = " ".join((_LINE_NUMBER.sub(" ", text) if is_list else text).split())
    if not re.search(_IN_BRACKETS, text):
        text = _IN_PARENTHESES.sub(r"[\1]", text)
    numbers = all(name.isdecimal() for name in names)
    bare = rf"(?<![\w.]){'[0-9]+' if numbers else '[A-Za-z]'}(?!\w|\.[0-9])"
    item = rf"(?:{_IN_BRACKETS}|\[? ?{bare} ?\]?)"
    separator = "[>,]" if numbers and not re.search(_IN_BRACKETS, text) else ">"
    between = rf"{_IN_BRACKETS}(?: ?[,;>] ?{bare})+ ?[,;>] ?(?={_IN_BRACKETS})"
    found = re.findall(rf"{between}|{item}(?: ?{separator} ?{item})+|{_IN_BRACKETS}", text)
    identifiers = [re.findall(_IDENTIFIER, chain) for chain in found]
    chains = [identifier for identifier in identifiers if len(identifier) > 1] if last_chain else []
    named = chains[-1] if chains else [name for identifier in identifiers for name in identifier]
    if not named:
        capitals = r"(?<![\w'’.])(?!I (?=[a-z]))[A-Z](?![\w'’])"
        named = re.findall(bare if numbers or all(map(str.islower, names)) else capitals, text)
    return [name.lstrip("0") or "0" if name.isdecimal() else name for name in named]


def _in_ascii(text: str) -> str:
    """Returns the text with the ASCII forms of letters, digits and brackets, such as "①", "２", "❸", "⁴" and "［"."""
    if text.isascii():
        return text
    folded = unicodedata.normalize("NFKC", text)
    return "".join(c if c.isascii() or (digit := unicodedata.digit(c, None)) is None else str(digit) for c in folded)
