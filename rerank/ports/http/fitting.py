"""Fits requests to this service: the names of other vendors' models, and options that it follows as far as it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rerank.errors import InvalidRequest
from rerank.ports.http.dialects.dialect import Translated
from rerank.reranking.reranker import AsyncReranker
from rerank.service.requests import RerankRequest, SearchRequest

#: The alias of every name that neither is a model nor has an alias of its own.
ANY_NAME = "*"
_MAX_QUOTED_CHARS = 100


class RequestFitter:
    """Fits requests of programs that were written for other services.

    Args:
        reranker: has the models, and the aliases of its configuration.
    """

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker
        self._names = {model.name for model in reranker.config.models}
        self._aliases = reranker.config.http.model_aliases if reranker.config.http else {}

    def fitted(
        self, translated: Translated, max_candidates: int
    ) -> tuple[Sequence[RerankRequest | SearchRequest], list[str]]:
        """The requests with the name of a model of this service, and a warning about each change.

        Raises:
            InvalidRequest: there are several requests, and the scores of the model compare within a request only.
        """
        requests, best_effort, warnings = translated.requests, translated.best_effort, list[str]()
        options = requests[0].options
        if (name := self._meant(options.model)) != options.model:
            warnings.append(f"model {options.model[:_MAX_QUOTED_CHARS]!r} is an alias of {name}, which answers")
            options = replace(options, model=name)
        if "min_relevance" in best_effort and options.min_relevance is not None and not self._gives_relevance(name):
            warnings.append(f"score_threshold has no effect, as model {name or 'default'} gives no relevance")
            options = replace(options, min_relevance=None)
        if len(requests) > 1 and not self._gives_relevance(name):
            raise InvalidRequest(
                "request",
                f"it has {len(requests)} queries, and scores of model {name or 'default'} compare within one query "
                "only; send one query in a request, or name a model that gives relevance (GET /v1/models)",
            )
        candidates = max(len(request.candidates) if isinstance(request, RerankRequest) else 0 for request in requests)
        if "max_chunks_per_doc" in best_effort and candidates:
            most = max(1, max_candidates // candidates)
            if options.max_chunks_per_doc > most:
                warnings.append(f"max_chunks_per_doc is {most}, the most for {candidates} documents")
                options = replace(options, max_chunks_per_doc=most)
        return ([replace(request, options=options) for request in requests] if warnings else requests), warnings

    def _meant(self, name: str) -> str:
        if not name or (name in self._names and name not in self._aliases):
            return name
        return self._aliases.get(name) or self._aliases.get(ANY_NAME, name)

    def _gives_relevance(self, name: str) -> bool:
        """True also for a name that no model has, because the service refuses such a request later."""
        found = (model for model in self._reranker.models() if model.name == name or (not name and model.is_default))
        return all(model.gives_relevance for model in found)
