"""rerank: listwise reranking with language models, as a gRPC service and as a Python library.

The public names are imported when they are first used, so that `import rerank` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rerank.access.credentials import Credentials
    from rerank.client.client import AsyncRerankClient, RerankClient
    from rerank.client.error_details import ServiceError
    from rerank.config import (
        EngineConfig,
        FirstModel,
        GenerationModel,
        IdentityModel,
        Limits,
        PERankModel,
        ServiceConfig,
        load_config,
    )
    from rerank.errors import (
        CheckpointError,
        CollectionError,
        ConfigError,
        DeadlineExceeded,
        IndexMismatch,
        InvalidRequest,
        ModelLoading,
        NotConfigured,
        NotFound,
        Overloaded,
        RerankError,
        SelfTestFailed,
        ShuttingDown,
        Unauthenticated,
        UsageError,
    )
    from rerank.reranking.blocking import Reranker
    from rerank.reranking.reranker import AsyncReranker, SearchResult, load_reranker
    from rerank.types import (
        Completeness,
        FeedbackMethod,
        FeedbackSettings,
        FirstStage,
        Passage,
        Query,
        RankedCandidate,
        Ranking,
        RankOptions,
        ScoreKind,
        StrategyKind,
        Trace,
    )

    __version__: str

__all__ = [
    "AsyncRerankClient", "AsyncReranker", "CheckpointError", "CollectionError",
    "Completeness", "ConfigError", "Credentials", "DeadlineExceeded", "EngineConfig", "FeedbackMethod",
    "FeedbackSettings", "FirstModel", "FirstStage", "GenerationModel", "IdentityModel", "IndexMismatch",
    "InvalidRequest", "Limits", "ModelLoading", "NotConfigured", "NotFound", "Overloaded", "PERankModel", "Passage",
    "Query", "RankOptions", "RankedCandidate", "Ranking", "RerankClient", "RerankError", "Reranker",
    "ScoreKind", "SearchResult", "SelfTestFailed", "ServiceConfig", "ServiceError", "ShuttingDown", "StrategyKind",
    "Trace", "Unauthenticated", "UsageError", "__version__", "load_config", "load_reranker",
]  # fmt: skip

#: Module → the public names that it defines; the same as in the imports above, which are for type checkers.
_EXPORTS = {
    "rerank.config": (
        "EngineConfig", "FirstModel", "GenerationModel", "IdentityModel", "Limits", "PERankModel", "ServiceConfig",
        "load_config",
    ),
    "rerank.errors": (
        "CheckpointError", "CollectionError", "ConfigError", "DeadlineExceeded", "IndexMismatch", "InvalidRequest",
        "ModelLoading", "NotConfigured", "NotFound", "Overloaded", "RerankError", "SelfTestFailed",
        "ShuttingDown", "Unauthenticated", "UsageError",
    ),
    "rerank.reranking.blocking": ("Reranker",),
    "rerank.reranking.reranker": ("AsyncReranker", "SearchResult", "load_reranker"),
    "rerank.client.client": ("AsyncRerankClient", "RerankClient"),
    "rerank.client.error_details": ("ServiceError",),
    "rerank.access.credentials": ("Credentials",),
    "rerank.types": (
        "Completeness", "FeedbackMethod", "FeedbackSettings", "FirstStage", "Passage",
        "Query", "RankOptions", "RankedCandidate", "Ranking", "ScoreKind", "StrategyKind", "Trace",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    """Imports a public name on its first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("rerank-listwise")
    elif name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
