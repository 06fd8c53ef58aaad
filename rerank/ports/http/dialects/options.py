"""The fields that requests in the dialects of others share, and the strict validation of these requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.names import did_you_mean
from rerank.types import RankOptions

RequestT = TypeVar("RequestT", bound=BaseModel)

_UNKNOWN_FIELD = "unknown_field"
#: The largest number in the messages of the service.
_INT32_MAX = 2**31 - 1


class StrictModel(BaseModel):
    """Base class of requests: nothing is converted to another type, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        """Finds the first unknown field. Pydantic itself makes an error of each, and there may be thousands."""
        names = given if isinstance(given, Mapping) else ()
        unknown = next((name for name in names if name not in cls.model_fields), None)
        if unknown is not None:
            hint = did_you_mean(unknown, cls.model_fields)
            raise PydanticCustomError(_UNKNOWN_FIELD, "{name}", {"name": unknown, "hint": hint})
        return given


class Options(StrictModel):
    """Fields that every dialect takes beside those of its API."""

    model: Annotated[str | None, Field(description="A model of the service; none: the default model.")] = None
    instruction: Annotated[
        str | None, Field(description="What is relevant, in words; refused by models that read no instruction.")
    ] = None
    ordered: Annotated[
        bool | None,
        Field(
            description="true: the passages are in the order of a first stage, best first, and this order counts. "
            "Otherwise it does not, and equal passages get equal scores."
        ),
    ] = None
    min_relevance: Annotated[
        float | None, Field(description="Least relevance of a result, 0 to 1; refused by models without.")
    ] = None
    relative_scores: Annotated[
        bool | None, Field(description="true: scores of this request only, although the model gives a relevance.")
    ] = None
    allow_partial: Annotated[
        bool | None, Field(description="true: at the deadline, the best order so far is the answer, not an error.")
    ] = None
    on_failure: Annotated[
        Literal["error", "first_stage", "first-stage"] | None,
        Field(
            description="first_stage: if the service fails to rank, the answer is the best order so far, or that of "
            "the first stage, and X-Rerank-Failure names the failure. Results without relevance then have the score 0 "
            "and ranked: false. None: the default of the API key, else error."
        ),
    ] = None

    def rank_options(self, top_n: int | None = None, max_chunks_per_doc: int = 0) -> RankOptions:
        """The options of the service. `top_n` None or 0: all results."""
        return RankOptions(
            model=self.model or "",
            top_n=min(top_n or 0, _INT32_MAX),
            ordered=bool(self.ordered),
            min_relevance=self.min_relevance,
            max_chunks_per_doc=min(max_chunks_per_doc, _INT32_MAX),
            allow_partial=bool(self.allow_partial),
            on_failure=self.on_failure or "",
        )


def validated(kind: type[RequestT], body: Mapping[str, Any]) -> RequestT:
    """The request of this type.

    Raises:
        InvalidRequest: names the first problem, with the path of the field. Lists in a request have `FailFast`, so that
            pydantic does not look for more.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == _UNKNOWN_FIELD:
            name, hint = _path((*first["loc"], first["ctx"]["name"])), first["ctx"]["hint"]
            raise InvalidRequest(name, f"this service does not know the field;{hint} leave it out") from error
        raise InvalidRequest(_path(first["loc"]), first["msg"].lower()) from error


def _path(location: tuple[int | str, ...]) -> str:
    """The path of a field, such as documents[3]. What follows an index names the alternatives of a union."""
    index = next((place for place, part in enumerate(location) if isinstance(part, int)), len(location))
    names = ".".join(str(part) for part in location[:index])
    return f"{names}[{location[index]}]" if index < len(location) else names
