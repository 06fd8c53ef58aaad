"""Window → the positions that a language model reads. Templates are YAML data, in the form that RankLLM uses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.types import Query

#: In a list of token ids: here stands the next passage's vector, here the query's.
PASSAGE_SLOT = -1
QUERY_SLOT = -2

_FIELD = re.compile(r"\{(num|query|instruction|rank|candidate|text|query_vector)\}")
#: What looks like a field: an unknown one would be shown to the model as it is.
_ANY_FIELD = re.compile(r"\{(\w+)\}")
_OF_THE_WINDOW = ("num", "query", "instruction", "example", "query_vector")
_OF_A_PASSAGE = ("rank", "candidate", "text")
_SLOTS = {"candidate": PASSAGE_SLOT, "query_vector": QUERY_SLOT}


class _TemplateText(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    prefix: str
    body: str
    suffix: str
    system_message: str = ""
    #: RankLLM's files carry these three; only one kind of method is one that we run, and answers are parsed by us.
    method: Literal["singleturn_listwise"] = "singleturn_listwise"
    output_validation_regex: str = ""
    output_extraction_regex: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt in three parts: `body` once a passage between `prefix` and `suffix`.

    Fields are written `{num}` (passages in the window), `{query}`, `{instruction}`, `{example}` (two identifiers as an
    answer would name them), `{rank}` (the passage's identifier, body only), `{candidate}` (the passage) and
    `{query_vector}`; where passages are vectors, `{text}` (the passage's text, body only).
    """

    prefix: str
    body: str
    suffix: str
    #: SHA-256 of the file, 64 hexadecimal digits.
    sha256: str
    #: What the chat's system role says, or the beginning of the user's turn where a model has no such role.
    system_message: str = ""
    #: The file itself, to be kept beside what was trained with it.
    source: bytes = field(default=b"", repr=False)


def load_template(name_or_path: str) -> Template:
    """A template of this package by name (`pe_rank`), or a YAML file by path.

    A plain name without suffix means the package's before a file in the working directory.

    Raises:
        ConfigError: no such template, an unknown key or field, a field of a passage outside the body, or a body that
            has `{candidate}` never or more than once.
    """
    content = _read(name_or_path)
    try:
        text = _TemplateText.model_validate(yaml.safe_load(content))
        _check_fields(text)
    except (ValidationError, yaml.YAMLError, ConfigError) as error:
        raise ConfigError(f"template {name_or_path}: {error}") from error
    return Template(
        text.prefix, text.body, text.suffix, hashlib.sha256(content).hexdigest(), text.system_message, content
    )


def _check_fields(text: _TemplateText) -> None:
    known = {
        "system_message": (),
        "prefix": _OF_THE_WINDOW,
        "body": (*_OF_THE_WINDOW, *_OF_A_PASSAGE),
        "suffix": _OF_THE_WINDOW,
    }
    if (count := text.body.count("{candidate}")) != 1:
        raise ConfigError(f"the body has {{candidate}} {count} times; each passage is read once")
    for part, allowed in known.items():
        for name in _ANY_FIELD.findall(getattr(text, part)):
            if name in _OF_A_PASSAGE and name not in allowed:
                raise ConfigError(f"{part}: {{{name}}} is a passage's, so it can stand in the body only")
            if name not in allowed:
                fields = ", ".join(f"{{{one}}}" for one in allowed) or "no fields"
                raise ConfigError(f"{part}: unknown field {{{name}}}; it may hold {fields}")


def _read(name_or_path: str) -> bytes:
    folder, path = resources.files("rerank") / "templates", Path(name_or_path)
    packaged = folder / f"{name_or_path}.yaml"
    if name_or_path == path.stem and packaged.is_file():
        return packaged.read_bytes()
    if path.is_file():
        return path.read_bytes()
    known = sorted(item.name.removesuffix(".yaml") for item in folder.iterdir())
    raise ConfigError(f"template {name_or_path!r} is neither a file nor one of {', '.join(known)}")


def slots_of(part: str) -> list[int]:
    """The slots that a part of a template has, in its order."""
    return [_SLOTS[field] for field in _FIELD.findall(part) if field in _SLOTS]


def vector_prompt(
    template: Template, tokenizer: PreTrainedTokenizerBase, query: Query, num: int, texts: Sequence[str] = ()
) -> list[int]:
    """The token ids of a prompt in which every passage is one vector, with slots where the vectors go.

    Passage slots come in the window's order. The query's text, and `texts` if the template shows them, are data:
    special tokens written in them are read as plain words.
    """
    values = {"num": str(num), "query": query.text, "instruction": query.instruction}
    ids: list[int] = []
    for piece in _pieces(template, num, values, texts or ("",) * num):
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += tokenizer(piece, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    return ids


def _pieces(template: Template, num: int, values: dict[str, str], texts: Sequence[str]) -> Iterator[str | int]:
    """Text between slots, whole, and the slots."""
    text = ""
    bodies = [(template.body, {"rank": str(rank), "text": texts[rank - 1]}) for rank in range(1, num + 1)]
    for part, own in [(template.prefix, {"rank": ""}), *bodies, (template.suffix, {"rank": ""})]:
        for index, token in enumerate(_FIELD.split(part)):
            if index % 2 == 0:
                text += token
            elif token in _SLOTS:
                if text.strip():
                    yield text
                yield _SLOTS[token]
                text = ""
            else:
                text += own[token] if token in own else values[token]
    if text.strip():
        yield text
