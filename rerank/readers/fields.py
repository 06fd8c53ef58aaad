"""The names of the fields in which rows of candidates and collections have a passage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rerank.readers.rows import BadRow, id_of, missing, one_of, optional_text_of, text_of


@dataclass(frozen=True, slots=True)
class PassageFields:
    """The names of the fields of a passage.

    Attributes:
        id: names of the field with the id; a row has one of them.
        text: name of the field with the text.
        title: name of the field with the title, which a row may lack.
    """

    id: Sequence[str]
    text: str = "text"
    title: str = "title"

    @property
    def names(self) -> Sequence[str]:
        return (*self.id, self.text, self.title)

    def of(self, row: Mapping[str, Any]) -> tuple[str, str, str]:
        """Id, text and title of a row; the title is empty if it has none. Raises: BadRow."""
        return id_of(row, self.id), text_of(row, self.text), optional_text_of(row, self.title)

    def renamed(self, id_field: str, text_field: str, title_field: str) -> PassageFields:
        """The names that the options --id-field, --text-field and --title-field give; an empty one stays as it is."""
        return PassageFields((id_field,) if id_field else self.id, text_field or self.text, title_field or self.title)

    def check(self, row: Mapping[str, Any]) -> None:
        """Raises: BadRow if the row of a file lacks the id or the text; the message names the option that helps."""
        for names, option in ((self.id, "--id-field"), ((self.text,), "--text-field")):
            if not any(name in row for name in names):
                raise BadRow(f"{missing(one_of(names), row)}; name the field with {option}, or rename it")
