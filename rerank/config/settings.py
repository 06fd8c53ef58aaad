"""Base class of all settings: a frozen pydantic model that refuses unknown keys and infinite numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rerank.errors import InvalidRequest
from rerank.names import FirstStageKind, FirstStageWeight, first_stage_weight


def _no_port_alone(address: Any) -> Any:
    if isinstance(address, int) and not isinstance(address, bool):
        raise ValueError(f"expected HOST:PORT, such as 127.0.0.1:{address}")
    return address


#: HOST:PORT.
Address = Annotated[str, BeforeValidator(_no_port_alone)]
#: Strict, so that `true` and "20" are errors and not numbers.
Positive = Annotated[int, Field(gt=0, strict=True)]


def _weight_or_kind(given: Any) -> FirstStageWeight:
    try:
        return first_stage_weight(given)
    except InvalidRequest as error:
        raise ValueError(error.description) from error


#: The name of a kind of lists, or a number.
WeightOrKind = Annotated[FirstStageKind | float, BeforeValidator(_weight_or_kind)]


class Settings(BaseModel):
    """Base class of all settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
