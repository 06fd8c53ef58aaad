"""Systems under evaluation: models of a gRPC service."""

from __future__ import annotations

import math
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from rerank import __version__
from rerank.access.credentials import Credentials
from rerank.checkpoints.hub import is_hub_name, repository_of
from rerank.client.client import RerankClient, list_loaded_models
from rerank.client.retries import DEFAULT_ATTEMPTS
from rerank.commands.run import console
from rerank.commands.service_process import service_process
from rerank.config import ModelConfig, ServiceConfig, load_config
from rerank.config.named import BUNDLED, named_model
from rerank.engine.scores import strictly_decreasing
from rerank.errors import ConfigError
from rerank.names import did_you_mean
from rerank.protobuf.fields import SCORE_KINDS
from rerank.types import Passage, Query, WindowTrace, preranker_scores
from rerank.v1 import rerank_pb2 as pb
from rerank_eval.measures import Response
from rerank_eval.settings import BASELINES, EvaluationSettings

#: Number in rerank.proto → kind of scores.
_KINDS = {number: kind for kind, number in SCORE_KINDS.items()}
_PACKAGES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "pyserini", "ir-measures")
#: Time that a request may take: more than any list of a test collection needs.
_MAX_REQUEST_S = 24 * 3600.0
#: Limits of the service that the evaluation starts: above the sizes in any test collection.
_LIMITS = {
    "max_request_s": _MAX_REQUEST_S,
    "max_candidates": 100_000,
    "max_query_chars": 10_000_000,
    "max_passage_chars": 100_000_000,
    "max_message_bytes": 1 << 30,
    "max_bytes_in_flight": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class System:
    """A model of a service under evaluation.

    Attributes:
        name: the name in the report.
        client: a client of the service.
        options: options of every call.
        fingerprint: every setting that decides the rankings.
    """

    name: str
    client: RerankClient
    options: Mapping[str, Any]
    fingerprint: Mapping[str, object]

    def rerank(self, query: Query, candidates: Sequence[Passage]) -> Response:
        """Ranks candidates, which come in the order of the first stage."""
        return _timed(query, partial(self.client.rerank, query.text, candidates, **self.options))

    def search(self, query: Query, **options: Any) -> Response:
        """Retrieves and ranks. `options` are fields of the message SearchRequest (rerank.proto)."""
        return _timed(query, partial(self.client.search, query.text, **self.options, **options))


def parse_systems(models: Sequence[str]) -> dict[str, str]:
    """Parses the values of --model, NAME or NAME=MODEL: name in the report → model. Without one, the default model.

    MODEL is the name of a model, RANKER:PATH, PATH, or one of BASELINES. Without NAME=, a model on the hub,
    ORGANISATION/MODEL, is called MODEL in the report.

    Raises:
        ConfigError: two models have the same name, or a name cannot be the name of a folder.
    """
    given = [
        (repository_of(text).rpartition("/")[2], "=", text) if is_hub_name(text) else text.partition("=")
        for text in models or ("default",)
    ]
    names = [name for name, _, _ in given]
    if len(set(names)) != len(names):
        raise ConfigError(f"--model {', '.join(names)}: two have the same name; rename one, as in --model NAME=MODEL")
    if wrong := next((name for name in names if not re.fullmatch(r"\w[\w.-]*", name)), None):
        raise ConfigError(f"the name {wrong!r} cannot name a folder; use letters, digits, '.', '-' and '_'")
    return {name: model or name for name, _, model in given}


@contextmanager
def open_systems(
    models: Mapping[str, str], settings: EvaluationSettings, index: Path | None = None
) -> Iterator[list[System]]:
    """Opens the systems. A service is started for them unless a target is given.

    Args:
        models: name of each system → its model, see `parse_systems`.
        index: folder of an index for the service that is started.

    Raises:
        ConfigError: a service did not start, or does not serve a model.
    """
    config = None if settings.target else service_config(models, settings, index)
    if config and settings.precision and (others := without_precision(config)):
        console.print(f"--precision {settings.precision} has no effect on {', '.join(others)}")
    with _client(settings.target, config) as client:
        served = {name: name for name in models} if config else models
        others = [""] if "default" in served.values() else []  # the default model, whatever its name
        listed = list_loaded_models(client, [*served.values(), *others], _MAX_REQUEST_S)
        index_fields = MessageToDict(listed.index, preserving_proto_field_name=True)
        yield [
            _system(name, client, _listed(listed.models, served[name]), model, settings, index_fields, config)
            for name, model in models.items()
        ]


def service_config(models: Mapping[str, str], settings: EvaluationSettings, index: Path | None = None) -> ServiceConfig:
    """The settings of the service that is started: the settings of --config, with only the models of the systems.

    Raises:
        ConfigError, CheckpointError: a setting or a model cannot be used, or there is no such model.
    """
    config = load_config(
        settings.config,
        listen="127.0.0.1:0",
        index=index,
        encoder=settings.encoder,
        limits=_LIMITS,
        engine={"text_vector_cache_bytes": 0},  # otherwise the first system would pay for the vectors of the others
    )
    known = {**BUNDLED, **{model.name: model for model in config.models}}
    if settings.config and not settings.model:
        known["default"] = config.models[0]
    wanted = {name: _model(name, model, known) for name, model in models.items()}
    for chosen in list(wanted.values()):
        while chosen.preranker:
            chosen = wanted.setdefault(chosen.preranker, known[chosen.preranker])
    precision = {"precision": settings.precision} if settings.precision else {}
    chosen_models = (
        model.model_copy(update=precision) if _has_precision(model) else model for model in wanted.values()
    )
    ports = {"http": None, "tls": None, "keys": None, "insecure": False}
    return config.model_copy(update={"models": tuple(chosen_models), **ports})


def _model(name: str, model: str, known: Mapping[str, ModelConfig]) -> ModelConfig:
    """The settings of the model of a system, under the system's name."""
    if model in BASELINES:
        own: Mapping[str, object] = {"name": name, **BASELINES[model]}
    elif model in known:
        return known[model].model_copy(update={"name": name})
    elif model == name:
        raise ConfigError(
            f"--model {name}: there is no such model;{did_you_mean(name, known)} the models are "
            f"{', '.join((*known, *BASELINES))}; or give NAME=RANKER:PATH, or a --config file that has it"
        )
    else:
        own = named_model(f"{name}={model}")
    return load_config(None, models=[own]).models[0]


def without_precision(config: ServiceConfig) -> list[str]:
    """The names of the models without a setting `precision`, except for those that compute nothing."""
    return [model.name for model in config.models if not (_has_precision(model) or model.ranker == "identity")]


def _has_precision(model: ModelConfig) -> bool:
    return "precision" in type(model).model_fields


@contextmanager
def _client(target: str, config: ServiceConfig | None) -> Iterator[RerankClient]:
    """A client of the service at the target, or of a service that is started with the configuration."""
    if config is None:
        with RerankClient(target, Credentials.from_environment(), DEFAULT_ATTEMPTS) as client:
            yield client
        return
    console.print(f"starting a service for {', '.join(model.name for model in config.models)} …")
    with service_process(config) as address, RerankClient(address, attempts=DEFAULT_ATTEMPTS) as client:
        yield client


def _listed(models: Iterable[pb.Model], name: str) -> pb.Model:
    """The model of this name; the default model of a service without a model named `default`."""
    by_name = {model.name: model for model in models}
    if name == "default" and name not in by_name:
        return next(iter(by_name.values()))
    if name not in by_name:
        raise ConfigError(f"the service has no model {name!r}; it has {', '.join(by_name)}")
    if problem := by_name[name].problem:
        raise ConfigError(f"the service cannot serve model {name!r}: {problem}")
    return by_name[name]


def _system(
    name: str,
    client: RerankClient,
    served: pb.Model,
    model: str,
    settings: EvaluationSettings,
    index: Mapping[str, object],
    config: ServiceConfig | None,
) -> System:
    weight = None if model in BASELINES else settings.first_stage_weight
    fingerprint = {
        "ranker": served.ranker,
        "model_id": served.model_id,
        "model_revision": served.model_revision,
        "template_sha256": served.template_sha256,
        "default_strategy": served.default_strategy,
        "first_stage_weight": weight,
        "searched": index,
        "versions": versions(),
    }
    # The trace has the scores of a cascade's preranker.
    options = {"model": served.name, "first_stage_weight": weight, "include_trace": True, "timeout_s": _MAX_REQUEST_S}
    return System(name, client, options, fingerprint | (_unreported(name, config) if config else {}))


def _unreported(name: str, config: ServiceConfig) -> dict[str, object]:
    """The settings that decide a system's rankings and that a service does not report."""
    models = {model.name: model for model in config.models}
    read = [name]
    while preranker := models[read[-1]].preranker:
        read.append(preranker)
    shared = config.model_dump(mode="json", include={"encoder", "sparse_encoder", "first_stage_weight"})
    return {"service": shared, "models": [models[name].model_dump(mode="json") for name in read]}


def _timed(query: Query, call: Callable[[], pb.RerankResponse]) -> Response:
    start = time.perf_counter()
    reply = call()
    wall_ms = (time.perf_counter() - start) * 1000
    kind = pb.ScoreKind.Name(reply.score_kind).removeprefix("SCORE_KIND_").lower()
    positions = tuple(result.original_position for result in reply.results)
    preranker_kind, scores = preranker_scores([_window(window) for window in reply.trace.windows])
    execution = MessageToDict(reply.execution, preserving_proto_field_name=True)
    return Response(
        query.query_id,
        tuple(result.doc_id for result in reply.results),
        tuple(strictly_decreasing([result.score for result in reply.results])),  # equal texts may have equal scores
        positions,
        {**execution, "score_kind": kind, "preranker_score_kind": preranker_kind.value},
        wall_ms,
        time.time(),
        tuple(scores.get(position, math.nan) for position in positions) if scores else (),
    )


def _window(window: pb.WindowTrace) -> WindowTrace:
    """Returns the parts of a window that `preranker_scores` reads."""
    kind = _KINDS[window.score_kind]
    return WindowTrace((*window.positions,), (), 0, (*window.scores,), kind, window.round, window.model)


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results depend on."""
    found = {"python": platform.python_version(), "rerank": __version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
