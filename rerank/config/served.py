"""Settings of a model that runs in a server: an inference server, which is sent prompts, or one with a rerank API."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rerank.config.settings import Positive, Settings
from rerank.errors import ConfigError
from rerank.inference_servers.api import APIS
from rerank.inference_servers.rerank_apis import RERANK_APIS
from rerank.util.header_values import check_header_value


class ServerSettings(Settings):
    """The server of a model, or a load balancer in front of servers with the same weights.

    Attributes:
        kind: the program that answers, or its API.
        url: where the server listens, such as http://gpu1:8000, without the path of a method.
        model: the name of the model at the server.
        api_key_env: the environment variable with the key that is sent as `Authorization: Bearer`. Default: none.
        max_in_flight: largest number of calls that wait for their answer at the same time. Default: 64.
    """

    _kinds: ClassVar[Collection[str]]

    kind: str
    url: str
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = ""
    max_in_flight: Positive = 64

    def api_key(self) -> str:
        """The key; empty without `api_key_env`. Raises: ConfigError if the variable is missing or not a valid key."""
        if self.api_key_env and not os.environ.get(self.api_key_env):
            raise ConfigError(
                f"served_by.api_key_env names the environment variable {self.api_key_env}, which is not set; set it"
            )
        key = os.environ[self.api_key_env] if self.api_key_env else ""
        check_header_value(f"served_by.api_key_env: the environment variable {self.api_key_env}", key)
        return key

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in cls._kinds:
            *others, last = (f"'{name}'" for name in cls._kinds)
            expected = {"expected": f"{', '.join(others)} or {last}"}
            raise PydanticCustomError("literal_error", "Input should be {expected}", expected)
        return kind

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ValueError("the URL has a password in it, which logs would show; use api_key_env")
        if not _is_address(parts):
            raise ValueError(f"{url!r} is not an address of a server; write it as http://HOST:PORT")
        return url.rstrip("/")


class InferenceServerSettings(ServerSettings):
    """The inference servers of a causal LM: vLLM or llama.cpp, which are sent prompts as token ids.

    Attributes:
        kind: the program that answers: vllm or llama-cpp (its `llama-server`).
        model: the name of the model at the servers, or of a LoRA adapter that they have loaded.
    """

    _kinds: ClassVar[Collection[str]] = APIS


class RerankServerSettings(ServerSettings):
    """The servers of a reranker that has a rerank API, which are sent the query and the passages as texts.

    Attributes:
        kind: the API: vllm (`/v1/rerank`), vllm-score (`/v1/score`), sglang, llama-cpp (`llama-server --reranking`),
            tei, infinity, cohere or jina. The HTTP port of this service answers as jina, cohere and tei.
        model: the name of the model at the servers. SGLang, llama.cpp and TEI serve one model, so any name does.
        scores: `pointwise` if the score of a passage does not depend on the other passages, so that a window may be
            divided into several calls; `listwise` if it does. Default: pointwise.
        instruction: whether the model reads the instruction of a request, as Qwen3-Reranker does; for the kinds vllm,
            vllm-score and sglang. Default: false.
        fields: further fields of each call, such as `max_tokens_per_doc: 512` for vllm and cohere. Default: none.
    """

    _kinds: ClassVar[Collection[str]] = RERANK_APIS

    scores: Literal["pointwise", "listwise"] = "pointwise"
    instruction: bool = False
    fields: Mapping[str, bool | int | float | str] = {}

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.instruction and not RERANK_APIS[self.kind].instruction:
            raise ValueError(f"the API of {self.kind} has no field for an instruction; leave it out")
        filled = RERANK_APIS[self.kind].reserved_fields
        if taken := sorted(filled & self.fields.keys()):
            raise ValueError(f"fields has {', '.join(taken)}, which each call fills in itself; leave it out")
        return self


def _is_address(url: SplitResult) -> bool:
    try:
        is_port = url.port != 0
    except ValueError:  # the port is not a number up to 65535
        return False
    return is_port and url.scheme in ("http", "https") and bool(url.hostname) and not (url.query or url.fragment)
