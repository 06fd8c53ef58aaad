"""Collections of passages, which `rerank index` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from rerank.collections import beir, pydoc
from rerank.types import Passage


@dataclass(frozen=True, slots=True)
class Collection:
    """A named source of passages. Each call of `passages` reads it from the start.

    Attributes:
        name: for people.
        passages: reads the passages.
        lines_of: the numbers of the lines that define a doc_id, for error messages.
        fingerprint: changes when the content does.
    """

    name: str
    passages: Callable[[], Iterator[Passage]]
    lines_of: Callable[[str], list[int]] = lambda _: []
    fingerprint: Callable[[], str] = lambda: ""


def open_collection(name_or_folder: str) -> Collection:
    """Opens the embedded collection `pydoc`, or a folder in BEIR layout.

    Raises:
        CollectionError: the argument is neither.
    """
    if name_or_folder == "pydoc":
        return Collection(pydoc.name(), pydoc.passages)
    folder = beir.checked_folder(name_or_folder)
    lines_of, fingerprint = partial(beir.lines_of, folder), partial(beir.fingerprint, folder)
    return Collection(folder.name, partial(beir.passages, folder), lines_of, fingerprint)
