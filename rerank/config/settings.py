"""Base class of all settings: a frozen pydantic model that refuses unknown keys and infinite numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_port_alone(address: Any) -> Any:
    if isinstance(address, int) and not isinstance(address, bool):
        raise ValueError(f"expected HOST:PORT, such as 127.0.0.1:{address}")
    return address


#: HOST:PORT.
Address = Annotated[str, BeforeValidator(_no_port_alone)]
#: Strict, so that `true` and "20" are errors and not numbers.
Positive = Annotated[int, Field(gt=0, strict=True)]


class Settings(BaseModel):
    """Base class of all settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
