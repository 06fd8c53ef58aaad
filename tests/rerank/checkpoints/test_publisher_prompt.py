"""A publisher's prompt from a repository: parsed and never run, compared with its hash, kept beside the model."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rerank.checkpoints.publisher_prompt import bring_prompt, read_words, template_of
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


def hashes(*strings: str) -> tuple[str, ...]:
    return tuple(hashlib.sha256(string.encode()).hexdigest() for string in strings)


PROMPT = PublisherPrompt(
    repository="owner/repository",
    files=(FILE,),
    literals={
        "prefix": hashes("Order {num} texts for {query}.\n", "{before(1, 2)}\n"),
        "body": hashes("<{i}> <HERE>"),
        "suffix": hashes("Texts above: {len}"),
    },
    replace={"{before(1, 2)}": "", "{i}": "{rank}", "<HERE>": "{candidate}", "{len}": "{num}"},
    sha256=hashlib.sha256(template_of(EXPECTED)).hexdigest(),
)


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with running_hub() as server:
        server.raw[f"/owner/repository/{FILE}"] = SOURCE
        monkeypatch.setattr("rerank.checkpoints.publisher_prompt._SERVER", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield server


def test_literals_become_a_template(github, tmp_path):
    bring_prompt(PROMPT, tmp_path, "org/model")
    assert yaml.safe_load((tmp_path / "template.yaml").read_text()) == EXPECTED
    assert load_template(str(tmp_path / "template.yaml"), VECTOR_FIELDS).sha256 == PROMPT.sha256


def test_prompt_beside_the_model_is_kept_and_not_asked_for(github, tmp_path):
    (tmp_path / "template.yaml").write_text("mine")
    bring_prompt(PROMPT, tmp_path, "org/model")
    assert (tmp_path / "template.yaml").read_text() == "mine"
    assert github.asked == []


def test_words_of_the_repository_are_asked_for_once(github, tmp_path):
    assert read_words(PROMPT, tmp_path) == EXPECTED
    assert read_words(PROMPT, tmp_path) == EXPECTED
    assert github.asked == [f"/owner/repository/{FILE}"]


@pytest.mark.parametrize("file", ["README.md", "modeling.py"])
def test_words_in_the_folder_of_the_model_need_no_network(github, tmp_path, file):
    """In the model's card, some blocks are no Python, and one is part of a list."""
    block = "".join(f"    {line}\r\n" for line in SOURCE.decode().splitlines())
    card = f"# Use\n```python\n>>> it works\n```\n- so:\n\n    ```python\n{block}    ```\n```bash\nls\n```\n"
    (tmp_path / file).write_bytes(SOURCE if file.endswith(".py") else card.encode())
    assert read_words(PROMPT, tmp_path) == EXPECTED
    assert github.asked == []
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_words_that_a_user_wrote_are_those_of_the_publisher(github, tmp_path):
    kept = tmp_path / "template.yaml"
    kept.write_text(yaml.safe_dump(dict(reversed(EXPECTED.items()))))
    assert list(read_words(PROMPT, tmp_path).items()) == list(EXPECTED.items())
    kept.write_text(yaml.safe_dump(EXPECTED | {"suffix": "Texts below: {num}"}))
    with pytest.raises(ConfigError, match=rf"have the SHA-256 [0-9a-f]{{64}}, and the profile states {PROMPT.sha256}"):
        read_words(PROMPT, tmp_path)
    for other in ("mine", "{prefix: a, body: b}", "{prefix: a, body: b, suffix: 3}"):
        kept.write_text(other)
        with pytest.raises(ConfigError, match="has to state the texts prefix, body, suffix; remove it, and repeat"):
            read_words(PROMPT, tmp_path)
    assert github.asked == []


def test_words_that_cannot_be_kept_are_used(github, tmp_path, monkeypatch, caplog):
    def fail(words: object, path: Path) -> None:
        raise PermissionError(f"read-only: {path}")

    monkeypatch.setattr("rerank.checkpoints.publisher_prompt._keep", fail)
    assert read_words(PROMPT, tmp_path) == EXPECTED
    assert "cannot be kept, and are asked for again the next time: read-only" in caplog.text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (SOURCE.replace(b"Texts above", b"Texts below"), "no string has the SHA-256 [0-9a-f]{64} of its suffix"),
        (SOURCE.replace(b"<HERE>", b"\\ud800"), "no string has the SHA-256 [0-9a-f]{64} of its body"),
        (b"def (", "no string has the SHA-256 [0-9a-f]{64} of its prefix"),
        (b"(" * 10_000, "is not where its profile says"),
        (b"\0", "is not where its profile says"),
        (b"#" * 600_000, "cannot be read .* has more than 524,288 bytes"),
    ],
)
def test_other_words_are_refused_and_leave_nothing(github, tmp_path, source, message):
    github.raw[f"/owner/repository/{FILE}"] = source
    with pytest.raises(ConfigError, match=f"the prompt of org/model .*{message}"):
        bring_prompt(PROMPT, tmp_path, "org/model")
    assert list(tmp_path.iterdir()) == []


def test_prompt_that_cannot_be_read_names_file_commit_and_folder(github, tmp_path, monkeypatch):
    github.raw.clear()
    with pytest.raises(ConfigError, match="HTTP Error 404"):
        bring_prompt(PROMPT, tmp_path, "org/model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    github.asked.clear()
    message = rf"HF_HUB_OFFLINE is set.*repeat .* where {github.url}/owner/repository/{FILE} can .* {tmp_path}/template"
    with pytest.raises(ConfigError, match=message):
        read_words(PROMPT, tmp_path)
    assert github.asked == []


def test_profiles_pin_whole_commits_and_hashes():
    pinned = [prompt for name in names() if (prompt := load_profile(name).publisher_prompt)]
    assert len(pinned) >= 2
    for prompt in pinned:
        for sha256 in (prompt.sha256, *(sha256 for literals in prompt.literals.values() for sha256 in literals)):
            assert len(bytes.fromhex(sha256)) == 32
        for file in prompt.files:
            commit, _, path = file.partition("/")
            assert len(bytes.fromhex(commit)) == 20
            assert path.endswith(".py")
