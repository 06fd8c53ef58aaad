"""Base class of all settings: a frozen pydantic model that refuses unknown keys and infinite numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: Strict, so that `true` and "20" are errors and not numbers.
Positive = Annotated[int, Field(gt=0, strict=True)]


class Settings(BaseModel):
    """Base class of all settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
