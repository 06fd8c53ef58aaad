"""A publisher's prompt from a repository: parsed and never run, compared with its hash, kept beside the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rerank.checkpoints.publisher_prompt import bring_prompt, template_of
from rerank.errors import ConfigError
from rerank.profiles import PublisherPrompt, load_profile, names
from rerank.prompting.templates import VECTOR_FIELDS, load_template
from tests.hub_server import HubServer, running_hub

COMMIT = "0123456789" * 4
FILE = f"{COMMIT}/src/prompts.py"
#: Made up, with what publishers' files have: code that must not run, f-strings, calls in them, and joined parts.
SOURCE = b'''
raise SystemExit("this file was run")
def before(query, num): return f"Order {num} texts for {query}.\\n"
def join(i): return f"{before(1, 2)}\\n" + (
f"<{i}> <HERE>")
AFTER = """Texts above: {len}"""
'''
EXPECTED = {
    "prefix": "Order {num} texts for {query}.\n\n",
    "body": "<{rank}> {candidate}",
    "suffix": "Texts above: {num}",
}
PROMPT = PublisherPrompt(
    repository="owner/repository",
    literals={"prefix": (f"{FILE}#L3", f"{FILE}#L4"), "body": (f"{FILE}#L5",), "suffix": (f"{FILE}#L6",)},
    replace={"{before(1, 2)}": "", "{i}": "{rank}", "<HERE>": "{candidate}", "{len}": "{num}"},
    sha256="",
)
PINNED = PROMPT.model_copy(update={"sha256": hashlib.sha256(template_of(PROMPT, {FILE: SOURCE})).hexdigest()})


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with running_hub() as server:
        server.raw[f"/owner/repository/{FILE}"] = SOURCE
        monkeypatch.setattr("rerank.checkpoints.publisher_prompt._SERVER", server.url)
        yield server


def test_literals_become_a_template(github: HubServer, tmp_path: Path) -> None:
    bring_prompt(PINNED, tmp_path, "org/model")
    assert yaml.safe_load((tmp_path / "template.yaml").read_text()) == EXPECTED
    assert load_template(str(tmp_path / "template.yaml"), VECTOR_FIELDS).sha256 == PINNED.sha256


def test_prompt_beside_the_model_is_kept_and_not_asked_for(github: HubServer, tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("mine")
    bring_prompt(PINNED, tmp_path, "org/model")
    assert (tmp_path / "template.yaml").read_text() == "mine"
    assert github.asked == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SOURCE.replace(b"Texts above", b"Texts below"), r"has the SHA-256 [0-9a-f]{64}, and its profile states"),
        (b"\n" * 9, "is not where its profile says .*no string begins at .*#L"),
        (b"def (", "is not where its profile says .*SyntaxError"),
        (b"(" * 10_000, "is not where its profile says"),
        (b"\0", "is not where its profile says"),
        (b"#" * 600_000, "cannot be read .* has more than 524,288 bytes"),
    ],
)
def test_other_words_are_refused_and_leave_nothing(
    github: HubServer, tmp_path: Path, source: bytes, message: str
) -> None:
    github.raw[f"/owner/repository/{FILE}"] = source
    with pytest.raises(ConfigError, match=message):
        bring_prompt(PINNED, tmp_path, "org/model")
    assert list(tmp_path.iterdir()) == []


def test_prompt_that_cannot_be_read_names_file_and_command(
    github: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    github.raw.clear()
    with pytest.raises(ConfigError, match="HTTP Error 404"):
        bring_prompt(PINNED, tmp_path, "org/model")
    monkeypatch.setattr("rerank.checkpoints.publisher_prompt._SERVER", "http://127.0.0.1:9")
    with pytest.raises(
        ConfigError, match=r"`rerank serve --check --model org/model` where .*/template\.yaml, or write"
    ):
        bring_prompt(PINNED, tmp_path, "org/model")


def test_profiles_pin_whole_commits_and_parts_of_a_template() -> None:
    pinned = [prompt for name in names() if (prompt := load_profile(name).publisher_prompt)]
    assert len(pinned) >= 2
    for prompt in pinned:
        assert prompt.literals.keys() >= {"prefix", "body", "suffix"}
        assert len(bytes.fromhex(prompt.sha256)) == 32
        for place in (place for places in prompt.literals.values() for place in places):
            commit, _, rest = place.partition("/")
            assert len(bytes.fromhex(commit)) == 20
            assert rest.partition("#L")[2].isdigit()
