"""Everything behind the wire, in one process: models, index, engine. For the service, notebooks and evaluation."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rerank import selftest, shipped
from rerank.backbone import pick_device
from rerank.config import FirstModel, GenerationModel, IdentityModel, ModelConfig, PERankModel, ServiceConfig
from rerank.encoder import DEFAULT_ENCODER, Encoder
from rerank.engine.engine import Engine
from rerank.engine.job import Job
from rerank.errors import ConfigError, DeadlineExceeded, InvalidRequest, NotConfigured, NotFound, SelfTestFailed
from rerank.feedback_search import FeedbackReport, FeedbackSearch
from rerank.identifiers import IdentifierKind
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.first import FirstRanker
from rerank.rankers.first_checkpoint import first_settings
from rerank.rankers.generation import GenerationRanker
from rerank.rankers.identity import IdentityRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.zero_effect import write_zero_effect_checkpoint
from rerank.retrieval.dense import with_vector
from rerank.retrieval.feedback import FeedbackSettings
from rerank.retrieval.index import FirstStage, Index
from rerank.types import Candidate, CandidateSource, Passage, Query, Ranking, RankOptions, ScoredDoc
from rerank.windows import Cascade, Single, Sliding, Strategy, TopDown, Tournament

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A ranking of what the first stage found, which may be nothing."""

    ranking: Ranking
    first_stage: FirstStage
    hits: int
    first_stage_ms: float
    #: None where none was asked for.
    feedback: FeedbackReport | None = None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A configured model, for those who ask what there is."""

    name: str
    info: RankerInfo
    default_strategy: Strategy
    is_default: bool
    #: Why it is not served; empty when it is.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FailedModel:
    """A model that was loaded and did not pass its self-test."""

    info: RankerInfo
    problem: str


class AsyncReranker:
    """Answers while it is open as an async context. `load_reranker` makes one from a configuration.

    Args:
        config: the settings; each of their models is in `rankers` or in `failed`.
        encoder: makes the vectors of queries.
        index: what `search` reads, and candidates may refer to.
        rankers: by model name.
        failed: by model name; requests that name one of them are refused.

    Raises:
        InvalidRequest: the default window of a model is wider than its ranker reads.
    """

    def __init__(
        self,
        config: ServiceConfig,
        encoder: Encoder,
        index: Index | None,
        rankers: Mapping[str, Ranker],
        failed: Mapping[str, FailedModel] | None = None,
    ) -> None:
        self.config = config
        self.index = index
        self._encoder = encoder
        self._models = {model.name: model for model in config.models}
        self._failed = dict(failed or {})
        self._infos = {name: ranker.info for name, ranker in rankers.items()}
        self._infos |= {name: model.info for name, model in self._failed.items()}
        self._engine = Engine(rankers, config.engine)
        self._first_stage_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="first-stage")
        for model in config.models:  # a default that its model cannot read must not wait for a request
            self._strategy(model.name, RankOptions())

    async def __aenter__(self) -> AsyncReranker:
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._engine.__aexit__(*error)
        await asyncio.to_thread(self._first_stage_thread.shutdown)

    def models(self) -> list[ModelDescription]:
        """The configured models, the default one first."""
        return [
            ModelDescription(
                name,
                self._infos[name],
                self._strategy(name, RankOptions()),
                is_default=number == 0,
                problem=self._failed[name].problem if name in self._failed else "",
            )
            for number, name in enumerate(self._models)
        ]

    async def rerank(
        self, query: Query, candidates: Sequence[CandidateSource], options: RankOptions, deadline: float | None = None
    ) -> Ranking:
        """The candidates' final order. `deadline` is on the event loop's clock, in seconds.

        Raises:
            NotFound: no such model, or a passage that the index does not hold.
            SelfTestFailed: the model is not served.
            NotConfigured: a candidate refers to the index, and there is none.
            InvalidRequest, Overloaded, DeadlineExceeded, ShuttingDown: see Engine.run.
        """
        model = self._model(options)
        strategy = self._strategy(model, options)
        return await self._run(model, strategy, query, self._resolve(candidates), options, deadline)

    async def search(
        self,
        query: Query,
        first_stage: FirstStage,
        depth: int,
        options: RankOptions,
        deadline: float | None = None,
        feedback: FeedbackSettings | None = None,
    ) -> SearchResult:
        """Retrieves `depth` candidates from the index, then orders them; with `feedback`, see FeedbackSearch.

        Raises as `rerank` does, and InvalidRequest where `feedback` finds no vector to move.
        """
        model = self._model(options)
        strategy = self._strategy(model, options)
        index = self._open_index()
        if feedback is not None and first_stage is FirstStage.BM25:
            raise InvalidRequest(
                "feedback", "bm25 has no query vector that could move; use dense or a hybrid first stage, or drop it"
            )
        retrieve = partial(self._retrieve, index, first_stage, depth)
        begun = time.perf_counter()
        query, candidates = await retrieve(query, deadline)
        first_stage_ms = (time.perf_counter() - begun) * 1000
        rank = partial(self._run, model, strategy, query)
        if feedback is None:
            ranking, report = await rank(candidates, options, deadline), None
        else:
            steps = FeedbackSearch(feedback, rank, retrieve, self.config.engine.answer_margin_s)
            ranking, report = await steps.run(query, candidates, options, deadline)
        return SearchResult(ranking, first_stage, len(candidates), first_stage_ms, report)

    async def _run(
        self,
        model: str,
        strategy: Strategy,
        query: Query,
        candidates: tuple[Candidate, ...],
        options: RankOptions,
        deadline: float | None,
    ) -> Ranking:
        job = Job(model, query, candidates, strategy, options.top_n, deadline, options.allow_partial)
        return await self._engine.run(job)

    async def _retrieve(
        self, index: Index, first_stage: FirstStage, depth: int, query: Query, deadline: float | None
    ) -> tuple[Query, tuple[Candidate, ...]]:
        """The query with its vector, and what was found for it."""

        def search() -> tuple[Query, list[ScoredDoc]]:
            bare = first_stage is FirstStage.BM25 or query.vector is not None
            encoded = query if bare else self._encoded(query)
            return encoded, index.retrievers[first_stage].search([encoded], depth)[0]

        try:
            async with asyncio.timeout_at(deadline):
                encoded, hits = await asyncio.get_running_loop().run_in_executor(self._first_stage_thread, search)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"deadline reached in the first stage ({first_stage.value}); allow more time"
            ) from error
        passages = index.store.passages([hit.doc_id for hit in hits])
        return encoded, tuple(Candidate(passage, hit.score) for passage, hit in zip(passages, hits, strict=True))

    def _encoded(self, query: Query) -> Query:
        """The query with its vector. Raises: InvalidRequest when the encoder would read its beginning only."""
        (tokens,), limit = self._encoder.token_counts([query.text]), self._encoder.max_text_tokens
        if tokens > limit:
            raise InvalidRequest(
                "query",
                f"the query is {tokens} tokens long, {self._encoder.id.name} reads at most {limit}; shorten it, or "
                "search by bm25",
                {"tokens": str(tokens), "limit": str(limit)},
            )
        return with_vector(self._encoder, query)

    def _resolve(self, sources: Sequence[CandidateSource]) -> tuple[Candidate, ...]:
        """Candidates with text, and with vectors where the index has them."""
        referred = [source.doc_id for source in sources if source.in_index]
        stored = {p.doc_id: p for p in self._open_index().store.passages(referred)} if referred else {}
        return tuple(Candidate(_passage(source, stored), source.score) for source in sources)

    def _open_index(self) -> Index:
        if self.index is None:
            raise NotConfigured(
                "this service runs without an index; start it with --index DIR, or send the passages' text"
            )
        return self.index

    def _model(self, options: RankOptions) -> str:
        """The model that was asked for, if it is served."""
        name = options.model or self.config.models[0].name
        if name not in self._models:
            raise NotFound(f"model {name!r} is none of {', '.join(self._models)}", {"model": name})
        self._refuse_failed(name)
        return name

    def _refuse_failed(self, name: str) -> None:
        if name in self._failed:
            raise SelfTestFailed(f"model {name!r} is not served; {self._failed[name].problem}", {"model": name})

    def _strategy(self, name: str, options: RankOptions) -> Strategy:
        """The strategy that was asked for, completed from the model's defaults and checked against its width."""
        default, widest = self._models[name], self._infos[name].max_window_size
        size = options.window_size or default.window_size
        if size > widest:
            raise InvalidRequest(
                "strategy.window_size",
                f"window_size {size} exceeds the {widest} passages that {name} reads at once; use at most {widest}",
                {"window_size": str(size), "limit": str(widest)},
            )
        match options.strategy or default.strategy:
            case Single.name:
                return Single(size)
            case TopDown.name:
                return TopDown(size)
            case Tournament.name:
                return Tournament(size)
            case Cascade.name:
                return Cascade(size, options.first_model, self._first_strategy(name, options.first_model))
        own_stride = default.stride if size == default.window_size else None
        return Sliding(size, options.stride or own_stride or size // 2, options.early_stop)

    def _first_strategy(self, model: str, first_model: str) -> Strategy:
        """How the cheap model of a cascade orders all candidates."""
        others = [name for name in self._models if name != model]
        if first_model not in others:
            raise InvalidRequest(
                "strategy.first_model",
                f"{first_model!r} cannot order the candidates for {model}; name one of {', '.join(others) or 'none'}",
                {"first_model": first_model},
            )
        self._refuse_failed(first_model)
        return self._strategy(first_model, RankOptions())


class Reranker:
    """AsyncReranker for code without an event loop: a notebook, a script. Use it in a `with` block.

    Raises as `load_reranker` does.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reranker", daemon=True)
        self._inner = load_reranker(config)

    def __enter__(self) -> Reranker:
        self._thread.start()
        self._wait(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._wait(self._inner.__aexit__(*error))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def rerank(
        self, query: Query, candidates: Sequence[CandidateSource], options: RankOptions | None = None
    ) -> Ranking:
        """See AsyncReranker.rerank."""
        return self._wait(self._inner.rerank(query, candidates, options or RankOptions()))

    def search(
        self,
        query: Query,
        first_stage: FirstStage = FirstStage.HYBRID_RRF,
        depth: int = 100,
        options: RankOptions | None = None,
        feedback: FeedbackSettings | None = None,
    ) -> SearchResult:
        """See AsyncReranker.search."""
        return self._wait(self._inner.search(query, first_stage, depth, options or RankOptions(), feedback=feedback))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def load_reranker(config: ServiceConfig) -> AsyncReranker:
    """Loads everything that the configuration names, and tests each model. One that fails is left out, and logged.

    Raises:
        ConfigError, CheckpointError, IndexMismatch: something that it names cannot be used.
    """
    encoder = Encoder(config.encoder, config.device)
    index = Index(config.index, encoder) if config.index else None
    rankers: dict[str, Ranker] = {}
    failed: dict[str, FailedModel] = {}
    for model in (located(model, encoder) for model in config.models):
        ranker = load_ranker(model, encoder, config.device)
        try:
            _test(ranker, model, config.device)
            rankers[model.name] = ranker
        except SelfTestFailed as error:
            log.exception("model %s is not served", model.name)
            failed[model.name] = FailedModel(ranker.info, str(error))
    return AsyncReranker(config, encoder, index, rankers, failed)


def _test(ranker: Ranker, model: ModelConfig, device: str) -> None:
    """Raises: SelfTestFailed."""
    if not isinstance(model, IdentityModel):
        tolerance = selftest.tolerance(pick_device(device).type, model.precision)
        selftest.check(ranker, scoring_settings(model), model.path, tolerance)


def scoring_settings(model: ModelConfig) -> dict[str, object]:
    """The settings of a model that its scores depend on, beside weights, template and rounding."""
    others = {"name", "path", "strategy", "window_size", "stride", "template", "precision"}
    return model.model_dump(mode="json", exclude=others)


def located(model: ModelConfig, encoder: Encoder) -> ModelConfig:
    """The model with a path. PE-Rank's is the checkpoint that ships, for the encoder that it was trained for; with
    another encoder, one at zero effect."""
    if not isinstance(model, PERankModel) or model.path is not None:
        return model
    path = shipped.PE_RANK if encoder.id.name == DEFAULT_ENCODER else zero_effect_checkpoint(encoder)
    return model.model_copy(update={"path": path})


def zero_effect_checkpoint(encoder: Encoder) -> Path:
    """The PE-Rank checkpoint that stands in for a trained one; made once an encoder, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "rerank" / f"pe-rank-zero-effect-{encoder.id.sha256[:12]}"
    if not folder.exists():
        try:
            write_zero_effect_checkpoint(encoder, folder)
        except ConfigError:  # another service that started at the same time was quicker; the bits are the same
            if not folder.exists():
                raise
    return folder


def load_ranker(model: ModelConfig, encoder: Encoder, device: str) -> Ranker:
    """The ranker of a model that has been `located`. Raises: ConfigError, CheckpointError."""
    match model:
        case IdentityModel():
            return IdentityRanker()
        case PERankModel():
            if model.path is None:
                raise ConfigError(f"model {model.name} has not been located; this is a bug")
            return PERankRanker(
                model.path, encoder, device, model.decoding, model.template, model.passage_text_tokens, model.precision
            )
        case FirstModel():
            trained = first_settings(model)
            return FirstRanker(
                model.path,
                trained.template,
                trained.identifiers,
                model.calibration,
                model.permutations,
                device,
                model.precision,
                trained.passage_tokens,
            )
        case GenerationModel():
            kind = IdentifierKind(model.identifiers)
            return GenerationRanker(model.path, model.template, kind, device, model.precision)


def _passage(source: CandidateSource, stored: dict[str, Passage]) -> Passage:
    if not source.in_index:
        return Passage(source.doc_id, source.text or "")
    passage = stored[source.doc_id]
    return passage if source.text is None else replace(passage, text=source.text)
