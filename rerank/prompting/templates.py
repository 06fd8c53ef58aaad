"""Loads and checks prompt templates, which are YAML files in the format of RankLLM."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from rerank.errors import ConfigError
from rerank.prompting.published import PREFIX, read_published
from rerank.prompting.style import PromptStyle
from rerank.util.files import missing_path_hint, read_text
from rerank.util.validation import problems_of, suggestion
from rerank.util.yaml_files import parse_yaml

#: Any name in braces. An unknown one is refused, because the model would read it as it is written.
_FIELD = re.compile(r"\{(\w+)\}")
#: Fields of the window, which every part of the prompt may have.
_WINDOW_FIELDS = ("num", "query", "instruction", "example", "query_vector")
#: Fields of one passage.
_PASSAGE_FIELDS = ("rank", "candidate", "text")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt in three parts: `prefix`, then `body` once per passage, then `suffix`.

    They are one turn of the user, unless `prefix_assistant` or `body_assistant` answers the prefix or each body, as in
    the conversation of RankGPT (Sun et al., arXiv 2304.09542).

    Fields of the window are `{num}` (the number of passages), `{query}`, `{instruction}`, `{example}` (two identifiers
    in the form of an answer) and `{query_vector}`. Fields of a passage, in the body only, are `{rank}` (its
    identifier), `{candidate}` (its text, or its vector for PE-Rank) and `{text}` (its text in addition to its vector).
    """

    prefix: str
    body: str
    suffix: str
    #: SHA-256 of the file, 64 hexadecimal digits.
    sha256: str
    #: The chat's system message, or the start of the user's turn for a model without a system role.
    system_message: str = ""
    #: The assistant's answer to the prefix; empty: no answer, the user's turn goes on.
    prefix_assistant: str = ""
    #: The assistant's answer to each passage; empty: no answer, the user's turn goes on.
    body_assistant: str = ""
    #: Text for `{instruction}` in prompts of queries with an instruction; in others `{instruction}` becomes empty.
    instruction: str = "{instruction}"
    #: False for prompts of plain text, whatever chat template the tokenizer has.
    chat_markup: bool = True
    #: The content of the file, which training saves with the checkpoint.
    source: bytes = field(default=b"", repr=False)
    #: Settings of the prompt in addition to its words.
    style: PromptStyle = field(default_factory=PromptStyle)

    @property
    def reads_instruction(self) -> bool:
        """True if the template has the field `{instruction}`."""
        return any("{instruction}" in part for part in (self.prefix, self.body, self.suffix))

    @property
    def query_repeats(self) -> int:
        """The number of times that a prompt contains the query, or the instruction if that occurs more often."""
        text = self.prefix + self.body + self.suffix
        return max(1, text.count("{query}"), text.count("{instruction}"))

    def instruction_text(self, instruction: str) -> str:
        """Returns the text for `{instruction}` in the prompt of a query with this instruction; empty without one."""
        return self.instruction.replace("{instruction}", instruction) if instruction else ""

    def without_instruction(self) -> Template:
        """Returns the template without the field `{instruction}`, and with the same hash."""
        prefix, body, suffix = (part.replace("{instruction}", "") for part in (self.prefix, self.body, self.suffix))
        return replace(self, prefix=prefix, body=body, suffix=suffix)

    def with_style(self, style: PromptStyle) -> Template:
        """Returns the template in another style. Its hash covers both."""
        sha256 = hashlib.sha256(f"{self.sha256} {style.model_dump_json(exclude_defaults=True)}".encode()).hexdigest()
        return self if style == self.style else replace(self, style=style, sha256=sha256)


class _TemplateFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    prefix: Annotated[str, Field(validation_alias=AliasChoices("prefix", "prefix_user"))]
    body: Annotated[str, Field(validation_alias=AliasChoices("body", "body_user"))]
    suffix: Annotated[str, Field(validation_alias=AliasChoices("suffix", "suffix_user"))]
    system_message: str = ""
    prefix_assistant: str = ""
    body_assistant: str = ""
    instruction: str = "{instruction}"
    chat_markup: bool = True
    #: RankLLM's files have these three keys. They have no effect, because answers are parsed in another way.
    method: Literal["singleturn_listwise", "multiturn_listwise"] = "singleturn_listwise"
    output_validation_regex: str = ""
    output_extraction_regex: str = ""


#: Groups of fields that a prompt with texts needs, for `load_template`: the query, and the identifiers of passages.
TEXT_FIELDS = (("query",), ("rank",))
#: The group of fields that a prompt with vectors needs: the query as text or as vector. Identifiers are optional.
VECTOR_FIELDS = (("query", "query_vector"),)


def load_template(name_or_path: str | Template, needs: Sequence[Sequence[str]] = ()) -> Template:
    """Loads a template of this package by name (`pe_rank`), or a YAML file by path; a Template is returned as it is.

    A name such as `rank-llm:rank_zephyr` means a template in the package rank-llm.

    A plain name without suffix is first looked up in the package, then as a file in the working directory.

    Args:
        needs: groups of fields; the template must have at least one field of each group.

    Raises:
        ConfigError: there is no such template, a key or field is unknown, a field of a passage is used outside the
            body, the body does not contain `{candidate}` exactly once, or a needed field is missing.
    """
    template = name_or_path if isinstance(name_or_path, Template) else _load(name_or_path)
    for group in needs:
        fields = [f"{{{name}}}" for name in group]
        if not any(field in part for field in fields for part in (template.prefix, template.body, template.suffix)):
            name = "" if isinstance(name_or_path, Template) else f" {name_or_path}"
            raise ConfigError(
                f"template{name}: the prompt has no {' or '.join(fields)}; add it, or the model cannot rank"
            )
    return template


def _load(name_or_path: str) -> Template:
    return parse_template(_read(name_or_path), name_or_path)


def parse_template(source: str, name_or_path: str) -> Template:
    """Returns the template of a YAML file's content. Raises: see `load_template`."""
    file = parse_yaml(source, f"template {name_or_path}")
    try:
        parts = _TemplateFile.model_validate(file.content)
        _check_fields(parts)
    except ValidationError as error:
        raise ConfigError(problems_of(error, file.content, _TemplateFile, file.file_and_line)) from error
    except ConfigError as error:
        raise ConfigError(f"template {name_or_path}: {error}") from error
    content = source.encode()
    sha256 = hashlib.sha256(content).hexdigest()
    return Template(
        parts.prefix,
        parts.body,
        parts.suffix,
        sha256,
        parts.system_message,
        parts.prefix_assistant,
        parts.body_assistant,
        parts.instruction,
        parts.chat_markup,
        content,
    )


def _read(name_or_path: str) -> str:
    if name_or_path.startswith(PREFIX):
        return read_published(name_or_path)
    folder, path = resources.files("rerank") / "templates", Path(name_or_path)
    known = sorted(item.name.removesuffix(".yaml") for item in folder.iterdir())
    if name_or_path in known:
        return (folder / f"{name_or_path}.yaml").read_bytes().decode("utf-8")
    if os.path.isfile(path):
        return read_text(path)
    raise ConfigError(
        f"template {name_or_path!r} is neither a file nor one of {', '.join(known)}"
        f"{suggestion(name_or_path, known) or missing_path_hint(path)}"
    )


def _check_fields(file: _TemplateFile) -> None:
    allowed_fields = {
        "system_message": (),
        "prefix": _WINDOW_FIELDS,
        "prefix_assistant": _WINDOW_FIELDS,
        "body_assistant": (*_WINDOW_FIELDS, "rank"),
        "body": (*_WINDOW_FIELDS, *_PASSAGE_FIELDS),
        "suffix": _WINDOW_FIELDS,
        "instruction": ("instruction",),
    }
    if (count := file.body.count("{candidate}")) != 1:
        raise ConfigError(f"the body contains {{candidate}} {count} times; write it once, where the passage belongs")
    for part, allowed in allowed_fields.items():
        for name in _FIELD.findall(getattr(file, part)):
            if name in _PASSAGE_FIELDS and name not in allowed:
                raise ConfigError(f"{part}: {{{name}}} is a field of a passage; move it to the body")
            if name not in allowed:
                fields = ", ".join(f"{{{field}}}" for field in allowed) or "none"
                raise ConfigError(f"{part}: unknown field {{{name}}}; allowed fields are {fields}")
