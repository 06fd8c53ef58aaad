"""Templates: loaded as written, named by their hash, and refused with the reason when they are wrong."""

import hashlib
from pathlib import Path

import pytest
import yaml

from rerank.errors import ConfigError
from rerank.prompting.templates import TEXT_FIELDS, VECTOR_FIELDS, Template, load_template


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "template.yaml"


def test_template_of_a_file_has_its_parts_and_hash(path):
    parts = {"system_message": "m", "prefix": "p {query}", "body": "{candidate}\n", "suffix": "a set {} or {a, b}"}
    path.write_text(yaml.safe_dump(parts))
    content = path.read_bytes()
    assert load_template(str(path)) == Template(**parts, sha256=hashlib.sha256(content).hexdigest(), source=content)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{prefix: p, body: '{candidate}', suffix: s, sufix: s}", r"1: sufix: unknown setting; did you mean suffix\?"),
        ("{prefix: p, body: '{candidate}'}", r"suffix: the setting is missing"),
        ("{prefix: p, body: '{rank}', suffix: s}", r"the body contains \{candidate\} 0 times; write it once"),
        ("{prefix: p, body: '{candidate} {candidate}', suffix: s}", r"the body contains \{candidate\} 2 times"),
        ("{prefix: p, body: '{candidate}', suffix: '{rank}'}", r"suffix: \{rank\} is a field of a passage; move it"),
        (
            "{prefix: '{qeury}', body: '{candidate}', suffix: s}",
            r"prefix: unknown field \{qeury\}; .* \{num\}, \{query\}, \{instruction\}, \{example\}, \{query_vector\}$",
        ),
        (
            "{system_message: 'rank {num}', prefix: p, body: '{candidate}', suffix: s}",
            r"system_message: unknown field \{num\}; allowed fields are none",
        ),
    ],
)
def test_wrong_template_is_refused_with_the_reason(path, text, problem):
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_template(str(path))
    assert str(caught.value).startswith(f"template {path}: ")


def test_plain_name_is_that_of_the_package_before_a_file_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    packaged = load_template("first")
    for name in ("first", "first.yaml"):
        (tmp_path / name).write_text("{prefix: mine, body: '{candidate}', suffix: s}")
    assert load_template("first") == packaged
    assert {load_template(path).prefix for path in ("./first", "first.yaml", str(tmp_path / "first"))} == {"mine"}


@pytest.mark.parametrize(
    ("text", "needs", "missing"),
    [
        ("{prefix: 'q {query}', body: '{candidate}', suffix: s}", TEXT_FIELDS, r"\{rank\}"),
        ("{prefix: p, body: '[{rank}] {candidate}', suffix: s}", TEXT_FIELDS, r"\{query\}"),
        ("{prefix: p, body: '{candidate}', suffix: s}", VECTOR_FIELDS, r"\{query\} or \{query_vector\}"),
    ],
)
def test_template_without_a_needed_field_is_refused(path, text, needs, missing):
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"template {path}: the prompt has no {missing}; add it"):
        load_template(str(path), needs)
    with pytest.raises(ConfigError, match=rf"template: the prompt has no {missing}; add it"):
        load_template(load_template(str(path)), needs)


def test_template_reads_an_instruction_if_it_has_a_place_for_one():
    names = ("first", "first_smollm2", "first_small", "pe_rank", "pe_rank_text")
    reading = {name for name in names if load_template(name).reads_instruction}
    assert reading == {"first", "pe_rank", "pe_rank_text"}
