"""Window → the positions that a language model reads. Templates are YAML data, in the form that RankLLM uses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def load_template(name_or_path: str) -> Template:
    """A template of this package by name (`pe_rank`), or a YAML file by path.

    Raises:
        ConfigError: no such template, an unknown key, no `{candidate}` in the body, or `{text}` outside it.
    """
    content = _read(name_or_path)
    try:
        text = _TemplateText.model_validate(yaml.safe_load(content))
    except (ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"template {name_or_path}: {error}") from error
    if "{candidate}" not in text.body:
        raise ConfigError(f"template {name_or_path}: the body has no {{candidate}}, so no passage would be read")
    if "{text}" in text.prefix + text.suffix:
        raise ConfigError(f"template {name_or_path}: {{text}} is a passage's, so it can stand in the body only")
    return Template(text.prefix, text.body, text.suffix, hashlib.sha256(content).hexdigest(), text.system_message)


def _read(name_or_path: str) -> bytes:
    packaged = resources.files("rerank") / "templates" / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if path.is_file():
        return path.read_bytes()
    if packaged.is_file():
        return packaged.read_bytes()
    known = sorted(item.name.removesuffix(".yaml") for item in (resources.files("rerank") / "templates").iterdir())
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
