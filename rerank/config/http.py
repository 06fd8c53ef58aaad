"""Settings of the HTTP port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from rerank.config.settings import Address, Settings


class HttpConfig(Settings):
    """Settings of the HTTP port, which is served beside gRPC. A text instead of a mapping is `listen`.

    Attributes:
        listen: HOST:PORT; port 0 chooses a free one. Default: 127.0.0.1:8080.
        model_aliases: name in requests → name of a model of the service, for clients that can only name the models of
            their vendor. "*" stands for all names that no model has. Replies and the log name the model that ran.
            Default: none.
        qrels: relevance judgements that the page at / shows: "pydoc", or a folder in BEIR layout. Default: none.
        allowed_hosts: names of this machine under which requests without a key are answered, beside those of the
            loopback, such as host.docker.internal. Default: none.
    """

    listen: Address = "127.0.0.1:8080"
    model_aliases: Mapping[str, str] = {}
    qrels: str | None = None
    allowed_hosts: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_address(cls, settings: Any) -> Any:
        if isinstance(settings, str):
            return {"listen": settings}
        if isinstance(settings, bool | int | float):
            raise ValueError(
                f"expected HOST:PORT, such as {cls.model_fields['listen'].default}, or a mapping with "
                f"{', '.join(cls.model_fields)}"
            )
        return settings
