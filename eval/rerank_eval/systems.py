"""Systems under evaluation: models of a gRPC service, and the oracle in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.json_format import MessageToDict

from rerank import profiles
from rerank.access.credentials import Credentials
from rerank.checkpoints.manifest import MANIFEST_FILE, TEMPLATE_FILE, model_in, profiled, read_manifest
from rerank.client.client import RerankClient
from rerank.client.retries import DEFAULT_ATTEMPTS
from rerank.commands.run import console
from rerank.commands.service_process import service_process
from rerank.config import CheckpointModel, Precision, ServiceConfig, load_config
from rerank.engine.scores import strictly_decreasing
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel
from rerank.types import CandidateSource, FirstStageWeight, Query
from rerank.v1 import rerank_pb2 as pb
from rerank_eval.settings import EvaluationSettings
from rerank_eval.specs import FUSIONS, SystemSpec
from rerank_eval.trace import RankedList

#: Deadline of a request, and limit of the service that the evaluation starts: long enough for the slowest machine.
_MAX_REQUEST_S = 24 * 3600.0


def strategy_of(spec: SystemSpec, settings: EvaluationSettings) -> dict[str, Any]:
    """The fields of the message Strategy (rerank.proto) for a system: the shared ones, with the system's own kind.

    A baseline or a cascade has the default strategy of its model.
    """
    if spec.preranker is not None or spec.ranker in FUSIONS:
        return {}
    strategy: dict[str, Any] = {"window_size": settings.window_size, "stride": settings.stride}
    if kind := spec.strategy or settings.strategy:
        strategy["kind"] = kind
    return {name: value for name, value in strategy.items() if value}


@contextmanager
def open_systems(
    specs: Sequence[SystemSpec], settings: EvaluationSettings, qrels: Iterable[Qrel], index: Path | None = None
) -> Iterator[dict[str, System]]:
    """The systems by name. A service is started only if a system or the first stage needs one, and no target is given.

    Args:
        qrels: judgements by which the oracle sorts.
        index: folder of an index for the service that is started.

    Raises:
        ConfigError: the settings do not fit the rankers, a service did not start, or does not serve a model.
    """
    if settings.target and any(spec.preranker for spec in specs):
        raise ConfigError(
            "a cascade in --system is of models that the evaluation starts; with --target, name a model of the service "
            "whose default strategy is that cascade"
        )
    if not settings.target and index is None and not any(spec.is_served for spec in specs):
        yield {spec.name: Oracle(qrels) for spec in specs}
        return
    with _client(specs, settings, index) as client:
        listed = client.list_models()
        models = {model.name: model for model in listed.models}
        index_info = MessageToDict(listed.index, preserving_proto_field_name=True)
        systems: dict[str, System] = {}
        for spec in specs:
            if not spec.is_served:
                systems[spec.name] = Oracle(qrels, client, index_info)
            else:
                model = _listed_model(models, _model_name(spec, models, bool(settings.target)))
                given = {} if settings.target else _fixed_settings(spec, settings)
                weight = None if spec.ranker in FUSIONS else settings.first_stage_weight
                systems[spec.name] = ServedSystem(client, model, strategy_of(spec, settings), weight, index_info, given)
        yield systems


@contextmanager
def _client(specs: Sequence[SystemSpec], settings: EvaluationSettings, index: Path | None) -> Iterator[RerankClient]:
    """A client of the service at --target, or of one that is started."""
    if settings.target:
        with RerankClient(settings.target, Credentials.from_environment(), DEFAULT_ATTEMPTS) as client:
            yield client
        return
    served = ", ".join(spec.name for spec in specs if spec.is_served)
    console.print(f"starting a service for {served or 'the first stage'} …")
    config = load_config(
        None,
        listen="127.0.0.1:0",
        index=index,
        encoder=settings.encoder or None,
        models=models_of(specs, settings, has_index=index is not None),
        limits={"max_request_s": _MAX_REQUEST_S},
        engine={"text_vector_cache_bytes": 0},  # systems that rank the same texts would cost less after the first
    )
    started = service_process(with_precision(config, settings.precision))
    with started as address, RerankClient(address, attempts=DEFAULT_ATTEMPTS) as client:
        yield client


def with_precision(config: ServiceConfig, precision: Precision) -> ServiceConfig:
    """The configuration with all models that run in the service in one precision."""
    update = {"precision": precision}
    models = (each.model_copy(update=update) if isinstance(each, CheckpointModel) else each for each in config.models)
    return config.model_copy(update={"models": tuple(models)})


def models_of(specs: Sequence[SystemSpec], settings: EvaluationSettings, has_index: bool = False) -> list[object]:
    """The models of a service that is started: those of all systems, after the service's own if one is `default`.

    Raises:
        ConfigError: a system would replace a model of the default system.
    """
    own = ServiceConfig().models if any(spec.ranker == "default" for spec in specs) else ()
    names = {model.name for model in own}
    for spec in specs:
        is_changed = spec.path or _given_settings(spec, settings) or spec.ranker != spec.name
        if spec.name in names and is_changed:
            raise ConfigError(f"{spec.name} is a model of the default system; rename this one, --system NAME=RANKER")
    models: list[object] = [
        model
        for spec in specs
        if spec.is_served and spec.ranker != "default" and spec.name not in names
        for model in (model_config(spec, settings), *_preranker_configs(spec, settings))
    ]
    if has_index and "identity" not in {*names, *(spec.name for spec in specs)}:
        models.append({"name": "identity", "ranker": "identity"})  # retrieves the candidates of the oracle
    return [*own, *models]


def _preranker_configs(spec: SystemSpec, settings: EvaluationSettings) -> Iterator[Mapping[str, object]]:
    """The models before that of a cascade, the last of them first, each with the next one as its preranker."""
    while spec.preranker is not None:
        spec = spec.preranker
        yield model_config(spec, settings)


def _model_name(spec: SystemSpec, models: Mapping[str, pb.Model], is_running: bool) -> str:
    """The name of a system's model in the service, which either was running or was started for the systems."""
    if spec.ranker == "default":
        return next(name for name, model in models.items() if model.is_default)
    return (spec.path or spec.ranker) if is_running else spec.name


def model_config(spec: SystemSpec, settings: EvaluationSettings) -> Mapping[str, object]:
    """The system as an entry of `models` in the service's configuration.

    A checkpoint with a manifest brings its own template and window size.

    Raises:
        ConfigError: the checkpoint is one of another ranker.
    """
    given = _given_settings(spec, settings) | spec.cascade_settings
    if spec.ranker in profiles.names():
        return {"name": spec.name, "path": spec.path, **profiled(spec.ranker), **given}
    if spec.ranker in FUSIONS:
        return {"name": spec.name, "ranker": "fusion", **FUSIONS[spec.ranker], **spec.cascade_settings}
    path = Path(spec.path)
    if not spec.path or not (path / MANIFEST_FILE).is_file():
        return {"name": spec.name, "ranker": spec.ranker} | ({"path": spec.path} if spec.path else {}) | given
    model = model_in(str(path), spec.name) | given
    if (spec.ranker, model["ranker"]) == ("generation", "first"):
        return _generation_config(model, path)
    if model["ranker"] != spec.ranker:
        raise ConfigError(f"{path} is a checkpoint of {model['ranker']}, not of {spec.ranker}")
    return model


def _given_settings(spec: SystemSpec, settings: EvaluationSettings) -> dict[str, object]:
    """The settings that the command line gives to all models whose ranker has them."""
    return {"template": settings.template} if settings.template and "template" in spec.model_settings else {}


def _generation_config(model: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """A checkpoint of FIRST that generates the whole permutation, with the prompt that it was trained with."""
    manifest = read_manifest(folder)
    identifiers = manifest.identifiers if manifest else ""
    return {"template": str(folder / TEMPLATE_FILE), "identifiers": identifiers, **model, "ranker": "generation"}


def _listed_model(models: Mapping[str, pb.Model], name: str) -> pb.Model:
    if name not in models:
        raise ConfigError(f"the service has no model {name!r}; it has {', '.join(models)}")
    if models[name].problem:
        raise ConfigError(f"the service cannot serve model {name!r}: {models[name].problem}")
    return models[name]


def _fixed_settings(spec: SystemSpec, settings: EvaluationSettings) -> dict[str, object]:
    """The settings that decide a model's rankings and that a service does not report."""
    precision = {"precision": settings.precision} if settings.precision != "float32" else {}
    return {**FUSIONS.get(spec.ranker, {}), **precision}


class ServedSystem:
    """A model of a service, with what its requests ask for. `fingerprint`: every setting that decides its rankings."""

    is_served = True

    def __init__(
        self,
        client: RerankClient,
        model: pb.Model,
        strategy: Mapping[str, Any],
        first_stage_weight: FirstStageWeight | None,
        index: Mapping[str, object],
        settings: Mapping[str, object],
    ) -> None:
        self._client = client
        self._options: dict[str, Any] = {
            "model": model.name,
            "strategy": strategy,
            "first_stage_weight": first_stage_weight,
            "timeout_s": _MAX_REQUEST_S,
        }
        self.fingerprint: Mapping[str, object] = {
            "ranker": model.ranker,
            "model_id": model.model_id,
            "model_revision": model.model_revision,
            "template_sha256": model.template_sha256,
            "default_strategy": model.default_strategy,
            "schedule": dict(strategy),
            "first_stage_weight": first_stage_weight,
            "searched": index,
            **settings,
        }

    def rerank(self, query: Query, candidates: Sequence[CandidateSource], ordered: bool = True) -> RankedList:
        """Ranks candidates, which it receives in the given order; the order counts only if it is `ordered`."""
        return _ranking(self._client.rerank(query.text, candidates, ordered=ordered, **self._options))

    def search(self, query: Query, **options: Any) -> RankedList:
        """Retrieves and ranks. `options` are fields of the message SearchRequest (rerank.proto)."""
        return _ranking(self._client.search(query.text, **self._options | options))


class Oracle:
    """Sorts candidates by the judgements, which is the upper bound for any order. It has the methods of ServedSystem.

    Args:
        qrels: the judgements.
        client: retrieves the candidates of `search`.
        index: of the service.
    """

    is_served = False

    def __init__(
        self, qrels: Iterable[Qrel], client: RerankClient | None = None, index: Mapping[str, object] | None = None
    ) -> None:
        self._grades = {(qrel.query_id, qrel.doc_id): qrel.relevance for qrel in qrels}
        self._client = client
        self.fingerprint: Mapping[str, object] = {
            "ranker": "Oracle",
            "model_revision": hashlib.sha256(repr(sorted(self._grades.items())).encode()).hexdigest(),
            "searched": index or {},
        }

    def rerank(self, query: Query, candidates: Sequence[CandidateSource], ordered: bool = True) -> RankedList:
        """Sorts by grade; candidates with equal grades keep their order, whether `ordered` or not."""
        grades = [self._grades.get((query.query_id, candidate.doc_id), 0) for candidate in candidates]
        positions = sorted(range(len(candidates)), key=lambda position: -grades[position])
        decreasing = tuple(float(len(positions) - rank) for rank in range(len(positions)))
        return RankedList(
            tuple(candidates[position].doc_id for position in positions), decreasing, tuple(positions), {}
        )

    def search(self, query: Query, **options: Any) -> RankedList:
        """Sorts the candidates that the service's first stage retrieves."""
        if self._client is None:
            raise AssertionError("an oracle without a client was asked to search; this is a bug")
        response = self._client.search(query.text, **{**options, "model": "identity", "timeout_s": _MAX_REQUEST_S})
        return self.rerank(query, [CandidateSource(hit.doc_id) for hit in response.results])


System: TypeAlias = ServedSystem | Oracle


def _ranking(response: pb.RerankResponse | pb.SearchResponse) -> RankedList:
    results = response.results
    return RankedList(
        tuple(result.doc_id for result in results),
        tuple(strictly_decreasing([result.score for result in results])),  # equal texts may have equal scores
        tuple(result.original_position for result in results),
        MessageToDict(response.execution, preserving_proto_field_name=True),
    )
