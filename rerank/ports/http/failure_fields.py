"""Fields of requests over HTTP that say what they get when they cannot be ranked in full, in all APIs of others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rerank.ports.http.dialect import StrictModel


class FailureFields(StrictModel):
    """The fields; they are part of no API but this one."""

    allow_partial: Annotated[
        bool | None, Field(description="At the deadline, return the best order so far instead of an error.")
    ] = None
    on_failure: Annotated[
        Literal["error", "first_stage", "first-stage"] | None,
        Field(
            description="first_stage: where the service fails to rank, return the best order so far, or that of the "
            "first stage, with the failure in X-Rerank-Failure. Results without relevance then have the score 0 and "
            "ranked: false. None: the default of the API key, else error."
        ),
    ] = None

    def failure_fields(self) -> dict[str, Any]:
        """The same fields of RankOptions."""
        return {"allow_partial": bool(self.allow_partial), "on_failure": self.on_failure or ""}
