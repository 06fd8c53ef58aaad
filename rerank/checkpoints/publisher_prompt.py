"""Finds the words of a publisher's prompt, which no package holds: in the model's folder, or in its repository.

A profile states the SHA-256 of each string (`rerank.profiles.PublisherPrompt`). These sources are searched in this
order, and the first source that has all strings is used:

1. template.yaml in the folder, which a download or a user wrote;
2. Python in the folder: its *.py, and the blocks in its README.md, which is the model's card;
3. files of the publisher's repository at a fixed commit, unless HF_HUB_OFFLINE is set. They are written to
   template.yaml in the folder, so that they are downloaded once.

Python is parsed and never run. `bring_prompt` is for rankers that read a template.yaml. Other rankers read the words
when they load, by the names of the parts in the profile:

    words = read_words(profile.publisher_prompt, folder)  # {"system": "…", "task": "…"}
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import re
import textwrap
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.errors import ConfigError
from rerank.profiles import PublisherPrompt
from rerank.util.files import atomic_file
from rerank.util.yaml_files import read_yaml

log = logging.getLogger(__name__)

#: Serves files of GitHub's repositories as /OWNER/REPOSITORY/COMMIT/PATH.
_SERVER = "https://raw.githubusercontent.com"
#: Time to connect to the server, and to wait for each part of its answer.
_TIMEOUT_S = 20.0
#: The largest Python file or card that is read.
_MAX_BYTES = 512 * 1024
#: The most Python files of a folder that are read.
_MAX_FILES = 100
_CARD = "README.md"
#: A block of Python in Markdown.
_BLOCK = re.compile(r"^[ \t]*```(?:python|py)[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
#: Exceptions of `ast.parse` for a text that is not Python.
_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


def read_words(prompt: PublisherPrompt, folder: Path, name: str = "") -> dict[str, str]:
    """Returns the words of a prompt: part → text.

    Args:
        folder: the model's folder.
        name: the model's name on the hub, for messages; empty for a folder.

    Raises:
        ConfigError: no source has the words, or the folder's template.yaml has other words.
    """
    path = folder / TEMPLATE_FILE
    if path.is_file():
        return _kept_words(prompt, path)
    if own := _own_words(prompt, folder):
        return own
    words = _published_words(prompt, folder, name or str(folder))
    try:
        _keep(words, path)
    except OSError as error:  # a folder that cannot be written
        log.warning("the words of the prompt cannot be kept, and are asked for again the next time: %s", error)
    return words


def bring_prompt(prompt: PublisherPrompt, folder: Path, name: str) -> None:
    """Writes the publisher's prompt into the folder of a model as template.yaml, unless it has such a file.

    Args:
        name: the model's name on the hub, for messages.

    Raises:
        ConfigError: no source has the words.
    """
    if not (path := folder / TEMPLATE_FILE).exists():
        _keep(_own_words(prompt, folder) or _published_words(prompt, folder, name), path)


def words_of(prompt: PublisherPrompt, sources: Iterable[str | bytes]) -> dict[str, str]:
    """Looks up the strings that the profile names in Python sources, and joins them: part of the prompt → text.

    Raises:
        LookupError: the sources lack a string.
    """
    strings = {_hash_of(text): text for source in sources for text in _strings(source)}
    words = dict[str, str]()
    for part, literals in prompt.literals.items():
        if missing := [sha256 for sha256 in literals if sha256 not in strings]:
            raise LookupError(f"no string has the SHA-256 {missing[0]} of its {part}")
        text = "".join(strings[sha256] for sha256 in literals)
        for word, field in prompt.replace.items():
            text = text.replace(word, field)
        words[part] = text
    return words


def template_of(words: Mapping[str, str]) -> bytes:
    """Returns the content of a template.yaml with these words, in JSON, which is also YAML."""
    return json.dumps(words, indent=1).encode() + b"\n"


def _kept_words(prompt: PublisherPrompt, path: Path) -> dict[str, str]:
    """The words in a template.yaml. Raises: ConfigError if their SHA-256 differs from the profile's."""
    content = read_yaml(path).content
    words = content if isinstance(content, dict) else {}
    if words.keys() != prompt.literals.keys() or not all(isinstance(text, str) for text in words.values()):
        parts = ", ".join(prompt.literals)
        raise ConfigError(f"{path} has to state the texts {parts}; remove it, and {_way_out(prompt, path)}")
    words = {part: words[part] for part in prompt.literals}
    if (found := hashlib.sha256(template_of(words)).hexdigest()) != prompt.sha256:
        raise ConfigError(
            f"the words in {path} have the SHA-256 {found}, and the profile states {prompt.sha256}, with which the "
            f"model was trained; remove the file, and {_way_out(prompt, path)}"
        )
    return words


def _own_words(prompt: PublisherPrompt, folder: Path) -> dict[str, str] | None:
    """The words in the Python files and the card of a folder; None if these lack a string of the prompt."""
    try:
        return words_of(prompt, _own_sources(folder))
    except LookupError:
        return None


def _published_words(prompt: PublisherPrompt, folder: Path, name: str) -> dict[str, str]:
    """The words in the publisher's repository. Raises: ConfigError if it cannot be read, or lacks a string."""
    cause: Exception
    try:
        return words_of(prompt, [_read(f"{_SERVER}/{prompt.repository}/{file}") for file in prompt.files])
    except OSError as error:
        problem, cause = f"the prompt of {name} cannot be read ({error})", error
    except LookupError as error:
        problem, cause = f"the prompt of {name} is not where its profile says ({error})", error
    raise ConfigError(f"{problem}; {_way_out(prompt, folder / TEMPLATE_FILE)}") from cause


def _keep(words: Mapping[str, str], path: Path) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(template_of(words))


def _way_out(prompt: PublisherPrompt, path: Path) -> str:
    files = " and ".join(f"{_SERVER}/{prompt.repository}/{file}" for file in prompt.files)
    return (
        f"repeat the command where {files} can be read, which keeps the words in {path}, put the model's {_CARD} next "
        f"to its weights, if it has them, or write the file, with {', '.join(prompt.literals)}"
    )


def _own_sources(folder: Path) -> Iterator[str | bytes]:
    """The Python in the folder of a model."""
    for path in sorted(islice(folder.glob("*.py"), _MAX_FILES)):
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:  # a pipe would wait for a writer
            yield path.read_bytes()
    if (card := folder / _CARD).is_file() and card.stat().st_size <= _MAX_BYTES:
        text = card.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        yield from (textwrap.dedent(block[1]) for block in _BLOCK.finditer(text))


def _read(url: str) -> bytes:
    """Raises: OSError if the file cannot be read, or is too large."""
    from huggingface_hub import constants  # here: commands that name no such model need no client

    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    log.info("reading %s", url)
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        content = bytes(response.read(_MAX_BYTES + 1))
    if len(content) > _MAX_BYTES:
        raise OSError(f"{url} has more than {_MAX_BYTES:,} bytes")
    return content


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _strings(source: str | bytes) -> Iterator[str]:
    """Yields the strings of a Python source, f-strings with their expressions in braces; none if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except _NOT_PYTHON:
        return
    yield from (_text(node) for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant))


def _text(node: ast.expr) -> str:
    match node:
        case ast.JoinedStr():
            return "".join(map(_text, node.values))
        case ast.FormattedValue():
            return f"{{{ast.unparse(node.value)}}}"
        case ast.Constant(value=str(text)):
            return text
    return ""
