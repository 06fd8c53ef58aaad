"""Settings of a model whose forward passes run in an inference server: vLLM, SGLang or llama.cpp."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rerank.config.settings import Positive, Settings
from rerank.inference_servers.kinds import APIS


class ServedBy(Settings):
    """The inference servers of a model. All of them serve the same weights under the same name.

    Attributes:
        kind: the program that answers: vllm, sglang or llama-cpp (its `llama-server`).
        urls: where the servers listen, such as http://gpu1:8000, without the path of a method. Each window goes to the
            one with the fewest windows in flight.
        model: the name of the model at the servers, or of a LoRA adapter that they have loaded.
        api_key_env: the environment variable with the key that is sent as `Authorization: Bearer`. Default: none.
        max_in_flight: the most windows that are sent and not answered, over all servers. Default: 64.
        timeout_s: seconds after which a server that has not answered counts as hanging, however busy it is; the window
            is then sent once more. Default: 300, which is more than a request may take.
        allow_top_k: rank also with a server that returns only the log-probabilities of the most probable tokens. A
            passage whose identifier is not among them comes last, and the reply names it. Default: false.
    """

    kind: str
    urls: Annotated[tuple[str, ...], Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = ""
    max_in_flight: Positive = 64
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 300.0
    allow_top_k: bool = False

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in APIS:
            *others, last = (f"'{name}'" for name in APIS)
            expected = {"expected": f"{', '.join(others)} or {last}"}
            raise PydanticCustomError("literal_error", "Input should be {expected}", expected)
        return kind

    @field_validator("urls")
    @classmethod
    def _are_distinct_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError(f"{url!r} is no address of a server; write it as http://HOST:PORT")
        stripped = tuple(url.rstrip("/") for url in urls)
        if len(set(stripped)) != len(stripped):
            raise ValueError("a server is named twice; name each once")
        return stripped

    @model_validator(mode="after")
    def _top_k_is_offered(self) -> Self:
        if self.allow_top_k and not APIS[self.kind].offers_top_k:
            raise ValueError(f"allow_top_k is for an old vLLM; {self.kind} returns all that is asked for")
        return self
