"""The kinds of inference servers, by the names that `served_by.kind` takes."""

from __future__ import annotations

from rerank.inference_servers.api import ServerApi
from rerank.inference_servers.llama_cpp import LlamaCppApi
from rerank.inference_servers.vllm import VllmApi

APIS: dict[str, type[ServerApi]] = {"vllm": VllmApi, "llama-cpp": LlamaCppApi}
