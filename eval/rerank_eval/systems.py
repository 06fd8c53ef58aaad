"""Systems under evaluation: models of a gRPC service, and baselines in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.json_format import MessageToDict

from rerank import bundled, profiles
from rerank.access.credentials import Credentials
from rerank.commands.messages import strategy_message
from rerank.config import ServiceConfig, load_config
from rerank.engine.scores import strictly_decreasing
from rerank.errors import ConfigError
from rerank.manifest import MANIFEST_FILE, TEMPLATE_FILE, profiled, read_manifest, served_model
from rerank.readers.qrels import Qrel
from rerank.service.process import service_process
from rerank.types import CandidateSource, Query
from rerank.v1 import rerank_pb2 as pb
from rerank_eval.baselines import Cosine, Oracle, PointwiseCrossEncoder, Scorer, ZScoreFusion
from rerank_eval.services import Services
from rerank_eval.specs import SystemSpec
from rerank_eval.trace import Ranking

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder

#: Deadline of a request, and limit of the service that the evaluation starts: long enough for the slowest machine.
_MAX_REQUEST_S = 24 * 3600.0


class System(Protocol):
    """Ranks given candidates, or searches and ranks. `fingerprint`: every setting that decides its rankings."""

    @property
    def fingerprint(self) -> Mapping[str, object]: ...

    def rerank(self, query: Query, candidates: Sequence[CandidateSource], ordered: bool = True) -> Ranking:
        """Ranks candidates; the system receives them in the given order, which counts only if it is `ordered`."""
        ...

    def search(self, query: Query, **options: Any) -> Ranking:
        """Retrieves and ranks. `options` are fields of the message SearchRequest (rerank.proto)."""
        ...


def strategy_of(spec: SystemSpec, shared: pb.Strategy) -> pb.Strategy:
    """The strategy of a system: the shared one, with the system's own kind if it has one.

    The preranker is left out of strategies other than the cascade, and the interpolation of rankers without scores.
    """
    strategy = pb.Strategy()
    strategy.CopyFrom(shared)
    if spec.strategy:
        strategy.MergeFrom(strategy_message(spec.strategy, 0, 0))
    if strategy.kind != pb.STRATEGY_KIND_CASCADE:
        strategy.ClearField("preranker")
    if spec.ranker in ("identity", "generation"):
        strategy.ClearField("interpolation")
    return strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of the service that an evaluation starts.

    Attributes:
        index: folder of an index.
        template: prompt template of all models but those of a checkpoint that brings its own.
        decoding: how PE-Rank orders a window; empty: the default of its checkpoint.
        order_prior: log-prior of the order in the windows of FIRST, in nats per place.
        encoder: name or folder; empty: the default encoder.
        encoder_name: name on the hub of an encoder that is given as a folder.
    """

    index: Path | None = None
    template: str = ""
    decoding: str = ""
    order_prior: float = 0.0
    encoder: str = ""
    encoder_name: str = ""


@contextmanager
def open_systems(
    specs: Sequence[SystemSpec],
    strategy: pb.Strategy,
    qrels: Iterable[Qrel],
    *,
    targets: Sequence[str] = (),
    options: ServiceOptions | None = None,
) -> Iterator[dict[str, System]]:
    """The systems by name. A service is started only if a system or the first stage needs one, and no target is given.

    Args:
        strategy: shared by all systems that have none of their own.
        qrels: judgements by which the oracle sorts.
        targets: HOST:PORT of running services with the same models, which share the queries.
        options: of a service that is started; None: all defaults.

    Raises:
        ConfigError: the options do not fit the rankers, a service did not start, or does not serve a model, or the
            targets do not serve the same models.
    """
    options = options or ServiceOptions()
    strategies = {spec.name: strategy_of(spec, strategy) for spec in specs}
    if strategy.preranker and not any(message.preranker for message in strategies.values()):
        raise ConfigError("--preranker needs the strategy cascade, and no system has it; add --strategy cascade")
    scorers = _scorers(specs, qrels, options.encoder)
    if not targets and options.index is None and len(scorers) == len(specs):
        yield {name: Baseline(scorer) for name, scorer in scorers.items()}
        return
    with _services(specs, targets, options) as client:
        listed = client.list_models()
        models = {model.name: model for model in listed.models}
        index_info = MessageToDict(listed.index, preserving_proto_field_name=True)
        systems: dict[str, System] = {}
        for spec in specs:
            if spec.name in scorers:
                systems[spec.name] = Baseline(scorers[spec.name], client, index_info)
            else:
                model = _served_model(models, _model_name(spec, models, bool(targets)))
                systems[spec.name] = ServedModel(client, model, strategies[spec.name], index_info)
        yield systems


@contextmanager
def _services(specs: Sequence[SystemSpec], targets: Sequence[str], options: ServiceOptions) -> Iterator[Services]:
    if targets:
        with Services(targets, Credentials.from_environment()) as services:
            yield services
        return
    models = models_of(specs, options)
    config = load_config(
        None,
        listen="127.0.0.1:0",
        index=options.index,
        encoder=options.encoder or None,
        encoder_name=options.encoder_name or None,
        models=models,
        limits={"max_request_s": _MAX_REQUEST_S},
        engine={"text_vector_cache_bytes": 0},  # systems that rank the same texts would cost less after the first
    )
    with service_process(config) as address, Services([address]) as services:
        yield services


def models_of(specs: Sequence[SystemSpec], options: ServiceOptions) -> list[object]:
    """The models of a service that is started: those of all systems, after the service's own if one is `default`.

    Raises:
        ConfigError: a system would replace a model of the default system.
    """
    own = ServiceConfig().models if any(spec.ranker == "default" for spec in specs) else ()
    rankers = {model.name: model.ranker for model in own}
    has_settings = options.template or options.decoding or options.order_prior
    for spec in specs:
        if spec.name in rankers and (spec.path or has_settings or spec.ranker != rankers[spec.name]):
            raise ConfigError(f"{spec.name} is a model of the default system; rename this one, --system NAME=RANKER")
    models: list[object] = [
        model_config(spec, options)
        for spec in specs
        if spec.is_served and spec.ranker != "default" and spec.name not in rankers
    ]
    is_missing = "identity" not in {*rankers, *(spec.name for spec in specs)}
    if options.index is not None and is_missing:
        models.append({"name": "identity", "ranker": "identity"})  # retrieves the candidates of the baselines
    return [*own, *models]


def _model_name(spec: SystemSpec, models: Mapping[str, pb.Model], is_running: bool) -> str:
    """The name of a system's model in the service, which either was running or was started for the systems."""
    if spec.ranker == "default":
        return next(name for name, model in models.items() if model.is_default)
    return (spec.path or spec.ranker) if is_running else spec.name


def model_config(spec: SystemSpec, options: ServiceOptions) -> Mapping[str, object]:
    """The system as an entry of `models` in the service's configuration.

    A checkpoint with a manifest brings its own template and window size.

    Raises:
        ConfigError: the checkpoint is one of another ranker.
    """
    if spec.ranker in profiles.names():
        settings = profiled(spec.ranker, Path(spec.path)) | ({"template": options.template} if options.template else {})
        decoding = {"decoding": options.decoding} if options.decoding and settings["ranker"] == "pe-rank" else {}
        return {"name": spec.name, "path": spec.path, **settings} | decoding
    given: dict[str, object] = {}
    if options.template and spec.ranker != "identity":
        given["template"] = options.template
    if options.decoding and spec.ranker == "pe-rank":
        given["decoding"] = options.decoding
    if options.order_prior and spec.ranker == "first":
        given["order_prior"] = options.order_prior
    path = spec.path or (str(bundled.FIRST) if spec.ranker == "first" else "")
    if not path or not (Path(path) / MANIFEST_FILE).is_file():
        return {"name": spec.name, "ranker": spec.ranker} | ({"path": path} if path else {}) | given
    model = served_model(f"{spec.name}={path}") | given
    if (spec.ranker, model["ranker"]) == ("generation", "first"):
        return _generation_config(model, Path(path))
    if model["ranker"] != spec.ranker:
        raise ConfigError(f"{path} is a checkpoint of {model['ranker']}, not of {spec.ranker}")
    return model


def _generation_config(model: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """A checkpoint of FIRST that generates the whole permutation, with the prompt that it was trained with."""
    manifest = read_manifest(folder)
    identifiers = manifest.identifiers if manifest else ""
    return {"template": str(folder / TEMPLATE_FILE), "identifiers": identifiers, **model, "ranker": "generation"}


def _served_model(models: Mapping[str, pb.Model], name: str) -> pb.Model:
    if name not in models:
        raise ConfigError(f"the service has no model {name!r}; it has {', '.join(models)}")
    if models[name].problem:
        raise ConfigError(f"the service cannot serve model {name!r}: {models[name].problem}")
    return models[name]


def _scorers(specs: Sequence[SystemSpec], qrels: Iterable[Qrel], encoder: str) -> dict[str, Scorer]:
    shared = _load_encoder(encoder) if {"cosine", "z-score"} & {spec.ranker for spec in specs} else None
    scorers: dict[str, Scorer] = {}
    for spec in specs:
        if spec.ranker == "cosine" and shared:
            scorers[spec.name] = Cosine(shared)
        elif spec.ranker == "z-score" and shared:
            # With a cache of vectors shared with `cosine`, its measured cost would be too low.
            scorers[spec.name] = ZScoreFusion(Cosine(shared))
        elif spec.ranker == "cross-encoder":
            scorers[spec.name] = PointwiseCrossEncoder(spec.path)
        elif spec.ranker == "oracle":
            scorers[spec.name] = Oracle(qrels)
    return scorers


def _load_encoder(name: str) -> Encoder:
    from rerank.models.encoder import DEFAULT_ENCODER, Encoder  # imports torch, which served systems do not need here

    return Encoder(name or DEFAULT_ENCODER)


class ServedModel:
    """A model of a service, with a strategy."""

    def __init__(self, client: Services, model: pb.Model, strategy: pb.Strategy, index: Mapping[str, object]) -> None:
        self._client = client
        self._options: dict[str, Any] = {"model": model.name, "strategy": strategy, "timeout_s": _MAX_REQUEST_S}
        self.fingerprint: Mapping[str, object] = {
            "ranker": model.ranker,
            "model_id": model.model_id,
            "model_revision": model.model_revision,
            "template_sha256": model.template_sha256,
            "default_strategy": model.default_strategy,
            "schedule": MessageToDict(strategy, preserving_proto_field_name=True),
            "searched": index,
        }

    def rerank(self, query: Query, candidates: Sequence[CandidateSource], ordered: bool = True) -> Ranking:
        return _ranking(self._client.rerank(query.text, candidates, ordered=ordered, **self._options))

    def search(self, query: Query, **options: Any) -> Ranking:
        return _ranking(self._client.search(query.text, **self._options | options))


class Baseline:
    """A scorer in this process, on given candidates or on those that a service retrieves."""

    def __init__(
        self, scorer: Scorer, client: Services | None = None, index: Mapping[str, object] | None = None
    ) -> None:
        self._scorer = scorer
        self._client = client
        self.fingerprint: Mapping[str, object] = {
            "ranker": type(scorer).__name__,
            "model_revision": scorer.revision,
            "searched": index or {},
        }

    def rerank(self, query: Query, candidates: Sequence[CandidateSource], ordered: bool = True) -> Ranking:
        """Sorts by score; candidates with equal scores keep their order, whether `ordered` or not."""
        scores = self._scorer(query, candidates)
        positions = sorted(range(len(candidates)), key=lambda position: -scores[position])
        decreasing = tuple(float(len(positions) - rank) for rank in range(len(positions)))
        return Ranking(tuple(candidates[position].doc_id for position in positions), decreasing, tuple(positions), {})

    def search(self, query: Query, **options: Any) -> Ranking:
        """Scores the candidates that the service's first stage retrieves."""
        if self._client is None:
            raise AssertionError("a baseline without a client was asked to search; this is a bug")
        options = {**options, "model": "identity", "return_passages": True, "timeout_s": _MAX_REQUEST_S}
        response = self._client.search(query.text, **options)
        hits = response.results
        return self.rerank(query, [CandidateSource(hit.doc_id, hit.text, score=hit.first_stage_score) for hit in hits])


def _ranking(response: pb.RerankResponse | pb.SearchResponse) -> Ranking:
    results = response.results
    return Ranking(
        tuple(result.doc_id for result in results),
        tuple(strictly_decreasing([result.score for result in results])),  # equal texts may have equal scores
        tuple(result.original_position for result in results),
        MessageToDict(response.execution, preserving_proto_field_name=True),
    )
