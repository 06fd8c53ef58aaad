"""Identity of an encoder: what the vectors of an index depend on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from rerank.config.encoder import EncoderConfig, Pooling


@dataclass(frozen=True, slots=True)
class EncoderId:
    """Identity of an encoder. An index can be used only with an encoder of the identity that it was built with.

    `pooling` and `end_token` come from the settings; empty if they are the folder's.
    """

    name: str
    sha256: str
    dimension: int
    max_tokens: int
    query_prompt: str = ""
    document_prompt: str = ""
    pooling: Pooling | Literal[""] = ""
    end_token: str = ""

    def __str__(self) -> str:
        around = {"query prompt": self.query_prompt, "document prompt": self.document_prompt}
        around |= {"pooling": self.pooling or "of the folder", "end token": self.end_token}
        texts = ", ".join(f"{name} {text!r}" for name, text in around.items())
        return f"encoder {self.name} (SHA-256 {self.sha256}, {texts})"

    @property
    def settings(self) -> EncoderConfig:
        """The settings that load it."""
        return EncoderConfig(
            name=self.name,
            query_prompt=self.query_prompt,
            document_prompt=self.document_prompt,
            pooling=self.pooling or None,
            end_token=self.end_token,
        )

    @property
    def vectors_sha256(self) -> str:
        """SHA-256 of what the vectors depend on: the weights, and the settings if there are any."""
        settings = (self.query_prompt, self.document_prompt, self.pooling, self.end_token)
        content = "\0".join((self.sha256, *settings)).encode()
        return hashlib.sha256(content).hexdigest() if any(settings) else self.sha256
