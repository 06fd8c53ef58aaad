"""Templates are data that is checked; a query's text is data that nothing interprets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.prompting.templates import PASSAGE_SLOT, QUERY_SLOT, Template, load_template, vector_prompt
from rerank.types import Query

#: Uses every field.
FULL = Template(
    prefix="{instruction} {num} passages for {query} {query_vector} .",
    body="[{rank}] {candidate} of {num}",
    suffix=" end {query}",
    sha256="",
)


@pytest.fixture(scope="module")
def tokenizer(encoder: Encoder) -> PreTrainedTokenizerBase:
    return encoder.copy_tokenizer()


@pytest.fixture(scope="module")
def packaged() -> Template:
    return load_template("pe_rank")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "template.yaml"


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text in which every character is meant literally."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


def slots(ids: list[int]) -> list[int]:
    return [token for token in ids if token < 0]


def test_template_of_a_file_is_what_the_file_says(path: Path) -> None:
    parts = {"system_message": "m", "prefix": "p {query}", "body": "{candidate}\n", "suffix": ""}
    path.write_text(yaml.safe_dump(parts))
    content = path.read_bytes()
    assert load_template(str(path)) == Template(**parts, sha256=hashlib.sha256(content).hexdigest(), source=content)


def test_keys_of_rank_llm_that_read_answers_are_allowed(path: Path) -> None:
    path.write_text(
        "{method: singleturn_listwise, prefix: p, body: '{candidate}', suffix: s, "
        "output_validation_regex: '.', output_extraction_regex: '.'}"
    )
    assert load_template(str(path)).body == "{candidate}"


def test_hash_changes_with_every_byte_of_the_file(path: Path) -> None:
    hashes = set()
    for text in ("{prefix: p, body: '{candidate}', suffix: s}", "{prefix: p, body: '{candidate}', suffix: s} # note"):
        path.write_text(text)
        hashes.add(load_template(str(path)).sha256)
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{prefix: p, body: '{candidate}', suffix: s, sufix: s}", r"(?s)sufix.*Extra inputs are not permitted"),
        ("{prefix: p, body: '{candidate}'}", r"(?s)suffix.*Field required"),
        ("{prefix: 1, body: '{candidate}', suffix: s}", r"(?s)prefix.*valid string"),
        ("{prefix: p, body: '{rank}', suffix: s}", r"the body has \{candidate\} 0 times; each passage is read once"),
        ("{prefix: '{candidate}', body: '', suffix: s}", r"the body has \{candidate\} 0 times"),
        ("{prefix: p, body: '{candidate} {candidate}', suffix: s}", r"the body has \{candidate\} 2 times"),
        ("{prefix: '{candidate}', body: '{candidate}', suffix: s}", r"prefix: \{candidate\} is a passage's, so it can"),
        ("{prefix: p, body: '{candidate}', suffix: '{rank}'}", r"suffix: \{rank\} is a passage's, so it can stand in"),
        (
            "{prefix: '{qeury}', body: '{candidate}', suffix: s}",
            r"prefix: unknown field \{qeury\}; .* \{num\}, \{query\}, \{instruction\}, \{example\}, \{query_vector\}$",
        ),
        (
            "{prefix: p, body: '{candidate} {title}', suffix: s}",
            r"body: unknown field \{title\}; .*\{rank\}, \{candidate\}, \{text\}$",
        ),
        (
            "{system_message: 'rank {num}', prefix: p, body: '{candidate}', suffix: s}",
            r"system_message: unknown field \{num\}; it may hold no fields",
        ),
        ("{prefix: '{text}', body: '{candidate}', suffix: s}", r"\{text\} is a passage's, so it can stand in the body"),
        ("{prefix: p, body: '{candidate}', suffix: s, method: pairwise}", r"(?s)method.*'singleturn_listwise'"),
        ("", r"valid dictionary"),
        ("just words", r"valid dictionary"),
        ("prefix: [", r"while parsing a flow node"),
    ],
)
def test_template_that_is_not_understood_is_refused(path: Path, text: str, problem: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_template(str(path))
    assert str(caught.value).startswith(f"template {path}: ")


def test_braces_that_are_no_field_are_text(path: Path) -> None:
    path.write_text("{prefix: 'a set {} or {a, b}', body: '{candidate}', suffix: s}")
    assert load_template(str(path)).prefix == "a set {} or {a, b}"


def test_plain_name_means_the_packages_own_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packaged = load_template("first")
    for name in ("first", "first.yaml"):
        (tmp_path / name).write_text("{prefix: mine, body: '{candidate}', suffix: s}")
    assert load_template("first") == packaged
    assert {load_template(path).prefix for path in ("./first", "first.yaml", str(tmp_path / "first"))} == {"mine"}


@pytest.mark.parametrize("name", ["no_such_template", "", "../templates/no_such_template"])
def test_unknown_template_names_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"template {name!r} is neither a file nor one of .*\bpe_rank\b"):
        load_template(name)


@pytest.mark.parametrize("num", [0, 1, 20])
def test_packaged_prompt_has_one_slot_a_passage_and_ends_in_the_query(
    packaged: Template, tokenizer: PreTrainedTokenizerBase, num: int
) -> None:
    ids = vector_prompt(packaged, tokenizer, Query("life of a flea", instruction="find facts"), num)
    text = text_ids(tokenizer, "query: life of a flea find facts passages: ")
    assert ids == text + [PASSAGE_SLOT] * num + [QUERY_SLOT]


@pytest.mark.parametrize("num", [0, 1, 20])
def test_every_field_stands_where_the_template_says(tokenizer: PreTrainedTokenizerBase, num: int) -> None:
    ids = vector_prompt(FULL, tokenizer, Query("life of a flea", instruction="find facts"), num)
    expected = [*text_ids(tokenizer, f"find facts {num} passages for life of a flea"), QUERY_SLOT]
    between = "."
    for rank in range(1, num + 1):
        expected += [*text_ids(tokenizer, f"{between} [{rank}]"), PASSAGE_SLOT]
        between = f"of {num}"
    assert ids == expected + text_ids(tokenizer, f"{between} end life of a flea")


@pytest.mark.parametrize("text", ["{candidate}", "{query_vector}", "{num}", "{rank}", "{query}", "{instruction}", "{}"])
@pytest.mark.parametrize("of", [Query, lambda text: Query("", instruction=text)], ids=["query", "instruction"])
def test_field_written_in_a_request_is_plain_text(
    packaged: Template, tokenizer: PreTrainedTokenizerBase, of: Callable[[str], Query], text: str
) -> None:
    query = of(text)
    ids = vector_prompt(packaged, tokenizer, query, 3)
    literal = text_ids(tokenizer, f"query: {query.text} {query.instruction} passages: ")
    assert ids == literal + [PASSAGE_SLOT] * 3 + [QUERY_SLOT]


@given(text=st.text() | st.sampled_from(["[SEP]", "[CLS] x [SEP]", "[PAD]", "[MASK]", "[UNK]", "\x00"]))
def test_no_text_of_a_query_makes_a_slot_or_a_special_token(
    packaged: Template, tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    ids = vector_prompt(packaged, tokenizer, Query(text, instruction=text), 2)
    assert slots(ids) == [PASSAGE_SLOT, PASSAGE_SLOT, QUERY_SLOT]
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}  # unknown characters are that one's purpose
    assert not special & {*ids}


@pytest.mark.parametrize("special", ["[SEP]", "[CLS]", "[PAD]", "[MASK]", "[UNK]"])
def test_special_token_written_in_a_query_is_read_as_words(
    packaged: Template, tokenizer: PreTrainedTokenizerBase, special: str
) -> None:
    plain = vector_prompt(packaged, tokenizer, Query(f"a [ {special[1:-1]} ] b"), 1)
    assert vector_prompt(packaged, tokenizer, Query(f"a {special} b"), 1) == plain


def test_empty_parts_leave_only_slots(tokenizer: PreTrainedTokenizerBase) -> None:
    template = Template(prefix="{query}", body="{candidate} \n", suffix="", sha256="")
    assert vector_prompt(template, tokenizer, Query(""), 3) == [PASSAGE_SLOT] * 3
    assert vector_prompt(template, tokenizer, Query(""), 0) == []
