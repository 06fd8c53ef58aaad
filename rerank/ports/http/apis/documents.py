"""Documents of a request: texts, or objects with fields to rank."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.types import Passage

Document: TypeAlias = str | dict[str, Any]
Texts: TypeAlias = Annotated[list[str], FailFast()]
Documents: TypeAlias = Annotated[
    list[Document], FailFast(), Field(description='Texts, or objects with the fields of "rank_fields".')
]
#: Fields of documents with an image, as its address or its content, in the APIs of Jina and Cohere.
_IMAGES = ("image", "image_url")
#: The service looks each of these fields up in every document.
_MAX_RANK_FIELDS = 100


def _few(names: Any) -> Any:
    """Counts the fields before pydantic looks at them, which makes an error of each that is not a text."""
    if isinstance(names, list) and len(names) > _MAX_RANK_FIELDS:
        message = f"{len(names)} fields exceed the limit of {_MAX_RANK_FIELDS}; send at most {_MAX_RANK_FIELDS}"
        raise PydanticCustomError("too_long", message)
    return names


RankFields: TypeAlias = Annotated[
    list[str] | None,
    Field(min_length=1, description='Fields of documents that are ranked, 100 at most; none: "text".'),
    BeforeValidator(_few),
]


def candidates_of(
    documents: Sequence[Document], fields: Sequence[str] | None = None, name: str = "documents"
) -> list[Passage]:
    """The documents with their places as doc_ids. A text is the fields in the given order, one per line.

    Without `fields`, it is the text of the field `text`, beside the title.

    Args:
        name: the field of the request with the documents; errors use it.

    Raises:
        InvalidRequest: an object has none of the fields, or one of them is not a text.
    """
    return [_candidate(document, f"{name}[{place}]", place, fields) for place, document in enumerate(documents)]


def _candidate(document: Document, path: str, place: int, fields: Sequence[str] | None) -> Passage:
    if isinstance(document, str):
        return Passage(str(place), document)
    values = {name: document[name] for name in fields or ("text",) if name in document}
    if not values:
        wanted = " or ".join(fields or ("text",))
        is_image = any(name in document for name in _IMAGES)
        way_out = "images are not read, so send a text" if is_image else "name its texts in rank_fields"
        raise InvalidRequest(path, f"the object has no field {wanted}; {way_out}")
    if other := next((name for name, value in values.items() if not isinstance(value, str)), None):
        problem = f"{reprlib.repr(values[other])} is not a text; send it as a text, or name other fields in rank_fields"
        raise InvalidRequest(f"{path}.{other}", problem)
    title = "" if fields else document.get("title") or ""
    if not isinstance(title, str):
        raise InvalidRequest(f"{path}.title", "it is not a text; send a text, or leave it out")
    return Passage(str(place), "\n".join(values.values()), title=title)


def as_object(document: Document) -> dict[str, Any]:
    """A document as replies return it: as it was sent, or {"text"} for a text."""
    return {"text": document} if isinstance(document, str) else document
