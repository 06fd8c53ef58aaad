"""Reads a publisher's prompt from the publisher's repository at a fixed commit, where no package holds it.

Its words are string literals of Python files, which are parsed and never run. They become the template.yaml in the
folder of a downloaded model, if that has the SHA-256 that the profile states.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from rerank.checkpoints.manifest import TEMPLATE_FILE
from rerank.errors import ConfigError
from rerank.profiles import PublisherPrompt
from rerank.util.files import atomic_file

log = logging.getLogger(__name__)

#: Serves files of GitHub's repositories as /OWNER/REPOSITORY/COMMIT/PATH.
_SERVER = "https://raw.githubusercontent.com"
_TIMEOUT_S, _MAX_BYTES = 20.0, 512 * 1024


def bring_prompt(prompt: PublisherPrompt, folder: Path, name: str) -> None:
    """Writes the publisher's prompt into the folder of a model as its template.yaml, unless there is one.

    Args:
        name: of the model on the hub, for messages.

    Raises:
        ConfigError: the publisher's files cannot be read, or their words are not those that the profile means.
    """
    if (path := folder / TEMPLATE_FILE).exists():
        return
    way_out = (
        f"give `rerank serve --check --model {name}` where {_SERVER} can be reached, which keeps the prompt in "
        f"{path}, or write it there"
    )
    files = {place.partition("#")[0] for places in prompt.literals.values() for place in places}
    try:
        contents = {file: _read(f"{_SERVER}/{prompt.repository}/{file}") for file in sorted(files)}
    except OSError as error:
        raise ConfigError(f"the prompt of {name} cannot be read ({error}); {way_out}") from error
    try:
        content = template_of(prompt, contents)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"the prompt of {name} is not where its profile says ({type(error).__name__}: {error}); {way_out}"
        ) from error
    if (found := hashlib.sha256(content).hexdigest()) != prompt.sha256:
        raise ConfigError(
            f"the prompt of {name} in {prompt.repository} has the SHA-256 {found}, and its profile states "
            f"{prompt.sha256}; {way_out}"
        )
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def template_of(prompt: PublisherPrompt, files: Mapping[str, bytes]) -> bytes:
    """Returns the template.yaml that the literals of a publisher's files make: JSON, which YAML contains.

    Args:
        files: COMMIT/PATH → content.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: a file cannot be parsed as Python.
        LookupError: no string begins on a line.
    """
    trees = {file: ast.parse(content) for file, content in files.items()}
    template = {}
    for part, places in prompt.literals.items():
        text = ""
        for place in places:
            file, _, line = place.partition("#L")
            text += _literal(trees[file], int(line), place)
        for words, field in prompt.replace.items():
            text = text.replace(words, field)
        template[part] = text
    return json.dumps(template, indent=1).encode() + b"\n"


def _read(url: str) -> bytes:
    """Raises: OSError if the file cannot be read, or is too large."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        content = bytes(response.read(_MAX_BYTES + 1))
    if len(content) > _MAX_BYTES:
        raise OSError(f"{url} has more than {_MAX_BYTES:,} bytes")
    return content


def _literal(tree: ast.AST, line: int, place: str) -> str:
    """Returns the longest string that begins on a line; of an f-string, with its expressions in braces."""
    found = [
        _text(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Constant) and node.lineno == line
    ]
    if not any(found):
        raise LookupError(f"no string begins at {place}")
    return max(found, key=len)


def _text(node: ast.expr) -> str:
    match node:
        case ast.JoinedStr():
            return "".join(map(_text, node.values))
        case ast.FormattedValue():
            return f"{{{ast.unparse(node.value)}}}"
        case ast.Constant(value=str(text)):
            return text
    return ""
