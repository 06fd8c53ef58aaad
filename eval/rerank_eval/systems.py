"""What is evaluated is what is served: a service at a target, or one that is started; and baselines beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict
from ir_measures import Qrel

from rerank import bundled
from rerank.commands.cli import strategy_message
from rerank.config import load_config
from rerank.errors import ConfigError
from rerank.manifest import MANIFEST_FILE, TEMPLATE_FILE, read_manifest, served_model
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.service.client import RerankClient
from rerank.service.process import service_process
from rerank.types import CandidateSource, Query, StrategyKind
from rerank.v1 import rerank_pb2 as pb
from rerank_eval.answers import Reply
from rerank_eval.baselines import Cosine, Oracle, PointwiseCrossEncoder, Scorer, ZScoreFusion

SERVED = ("identity", "pe-rank", "first", "generation")
BASELINES = ("cosine", "z-score", "cross-encoder", "oracle")

#: An evaluation waits for its answers, however slow the machine.
_MAX_REQUEST_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Spec:
    """A system as the command line names it.

    Attributes:
        path: a checkpoint; with a target, the name of a model there.
        strategy: its own; None: what all share.
    """

    name: str
    ranker: str
    path: str = ""
    strategy: StrategyKind | None = None

    @property
    def is_served(self) -> bool:
        return self.ranker in SERVED


class System(Protocol):
    """Orders candidates, given or found. `settings` say what decides its answers, beside the query."""

    @property
    def settings(self) -> Mapping[str, object]: ...

    def rerank(self, query: Query, candidates: Sequence[CandidateSource]) -> Reply:
        """Orders candidates, which are in the order in which the system shall get them."""
        ...

    def search(self, query: Query, **options: Any) -> Reply:
        """Retrieves and orders. `options` are fields of SearchRequest."""
        ...


def parse_systems(rankers: Sequence[str], systems: Sequence[str], model: str) -> list[Spec]:
    """The systems of `--ranker RANKER …` and `--system NAME=RANKER[/STRATEGY][:PATH] …`; without any, PE-Rank.

    Raises:
        ConfigError: no such ranker or strategy, a strategy for what has no windows, a name twice or one that is no file
            name, or a `--model` without its one ranker.
    """
    if model and len(rankers) > 1:
        raise ConfigError("--model belongs to one --ranker; name each with --system NAME=RANKER:PATH")
    plain = [Spec(ranker, ranker, model) for ranker in rankers or (() if systems else ("pe-rank",))]
    specs = plain + [_parse(system) for system in systems]
    for spec in specs:
        if spec.ranker not in SERVED + BASELINES:
            raise ConfigError(f"ranker {spec.ranker!r} is none of {', '.join(SERVED + BASELINES)}")
        if spec.strategy and not spec.is_served:
            raise ConfigError(f"{spec.ranker} has no windows, so no strategy {spec.strategy}")
        if not re.fullmatch(r"\w[\w.-]*", spec.name):
            raise ConfigError(f"system name {spec.name!r} would name a folder; use letters, digits, '.', '-' and '_'")
        if spec.ranker == "cross-encoder" and not spec.path:
            raise ConfigError("a cross-encoder needs its model: --system NAME=cross-encoder:PATH_OR_NAME")
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"systems {', '.join(names)}: give each another name with --system NAME=RANKER")
    return specs


def _parse(text: str) -> Spec:
    name, equals, system = text.partition("=")
    ranker, _, path = system.partition(":")
    ranker, slash, strategy = ranker.partition("/")
    if not equals:
        raise ConfigError(f"--system {text!r}: expected NAME=RANKER[/STRATEGY][:PATH]")
    if slash and strategy not in list(StrategyKind):
        raise ConfigError(f"--system {text!r}: strategy {strategy!r} is none of {', '.join(StrategyKind)}")
    return Spec(name, ranker, path, StrategyKind(strategy) if slash else None)


def schedule_of(spec: Spec, shared: pb.Strategy) -> pb.Strategy:
    """The schedule that a system is asked for: the shared one, under its own strategy if it has one.

    The first model belongs to the cascade alone and is left out of others.
    """
    schedule = pb.Strategy()
    schedule.CopyFrom(shared)
    if spec.strategy:
        schedule.MergeFrom(strategy_message(spec.strategy, 0, 0))
    if schedule.kind != pb.STRATEGY_KIND_CASCADE:
        schedule.ClearField("preranker")
    return schedule


@contextmanager
def open_systems(
    specs: Sequence[Spec],
    template: str,
    target: str,
    qrels: Iterable[Qrel],
    schedule: pb.Strategy,
    index: Path | None = None,
    encoder: str = "",
) -> Iterator[dict[str, System]]:
    """The systems by name. A service is started only where one of them, or the first stage, needs it.

    Raises:
        ConfigError: the options do not fit the rankers, a service did not start, or it does not serve a model.
    """
    schedules = {spec.name: schedule_of(spec, schedule) for spec in specs}
    if schedule.preranker and not any(one.preranker for one in schedules.values()):
        raise ConfigError("--preranker belongs to the cascade, and no system has that strategy")
    scorers = _scorers(specs, qrels, encoder or DEFAULT_ENCODER)
    if not target and index is None and len(scorers) == len(specs):
        yield {name: Baseline(scorer) for name, scorer in scorers.items()}
        return
    with _service(specs, template, target, index, encoder) as client:
        offered = client.list_models()
        models = {model.name: model for model in offered.models}
        read = MessageToDict(offered.index, preserving_proto_field_name=True)
        names = {spec.name: (spec.path or spec.ranker) if target else spec.name for spec in specs}
        yield {
            name: Baseline(scorers[name], client, read)
            if name in scorers
            else Served(client, _asked(models, asked), schedules[name], read)
            for name, asked in names.items()
        }


@contextmanager
def _service(
    specs: Sequence[Spec], template: str, target: str, index: Path | None, encoder: str
) -> Iterator[RerankClient]:
    if target:
        with RerankClient(target) as client:
            yield client
        return
    models: list[Mapping[str, object]] = [model_of(spec, template) for spec in specs if spec.is_served]
    if index is not None and "identity" not in [model["name"] for model in models]:
        models.append({"name": "identity", "ranker": "identity"})  # finds candidates for the baselines
    limits = {"max_request_s": _MAX_REQUEST_S}
    config = load_config(None, listen="127.0.0.1:0", index=index, encoder=encoder or None, models=models, limits=limits)
    with service_process(config) as address, RerankClient(address) as client:
        yield client


def model_of(spec: Spec, template: str) -> Mapping[str, object]:
    """The system as a model of the configuration; a checkpoint of our training knows its template and its window."""
    given = {"template": template} if template and spec.ranker in ("first", "generation") else {}
    path = spec.path or (str(bundled.FIRST) if spec.ranker == "first" else "")
    if not path or not (Path(path) / MANIFEST_FILE).is_file():
        return {"name": spec.name, "ranker": spec.ranker} | ({"path": path} if path else {}) | given
    model = served_model(f"{spec.name}={path}") | given
    if (spec.ranker, model["ranker"]) == ("generation", "first"):
        return _writing(model, Path(path))
    if model["ranker"] != spec.ranker:
        raise ConfigError(f"{path} is a checkpoint of {model['ranker']}, not of {spec.ranker}")
    return model


def _writing(model: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """A checkpoint of FIRST that writes the order instead, with the prompt that it was trained with."""
    manifest = read_manifest(folder)
    identifiers = manifest.identifiers if manifest else ""
    return {"template": str(folder / TEMPLATE_FILE), "identifiers": identifiers, **model, "ranker": "generation"}


def _asked(models: Mapping[str, pb.Model], name: str) -> pb.Model:
    if name not in models:
        raise ConfigError(f"the service has no model {name!r}; it has {', '.join(models)}")
    if models[name].problem:
        raise ConfigError(f"model {name!r} is not served; {models[name].problem}")
    return models[name]


def _scorers(specs: Sequence[Spec], qrels: Iterable[Qrel], encoder: str) -> dict[str, Scorer]:
    shared = Encoder(encoder) if {"cosine", "z-score"} & {spec.ranker for spec in specs} else None
    scorers: dict[str, Scorer] = {}
    for spec in specs:
        if spec.ranker == "cosine" and shared:
            scorers[spec.name] = Cosine(shared)
        elif spec.ranker == "z-score" and shared:
            scorers[spec.name] = ZScoreFusion(Cosine(shared))  # vectors of its own, or its times would be too good
        elif spec.ranker == "cross-encoder":
            scorers[spec.name] = PointwiseCrossEncoder(spec.path)
        elif spec.ranker == "oracle":
            scorers[spec.name] = Oracle(qrels)
    return scorers


class Served:
    """A model of a service, with a schedule."""

    def __init__(
        self, client: RerankClient, model: pb.Model, schedule: pb.Strategy, index: Mapping[str, object]
    ) -> None:
        self._client = client
        self._options: dict[str, Any] = {"model": model.name, "strategy": schedule}
        self.settings: Mapping[str, object] = {
            "ranker": model.ranker,
            "model_id": model.model_id,
            "model_revision": model.model_revision,
            "template_sha256": model.template_sha256,
            "default_strategy": model.default_strategy,
            "schedule": MessageToDict(schedule, preserving_proto_field_name=True),
            "searched": index,
        }

    def rerank(self, query: Query, candidates: Sequence[CandidateSource]) -> Reply:
        sent = [pb.Candidate(doc_id=c.doc_id, text=c.text, first_stage_score=c.score) for c in candidates]
        return _reply(self._client.rerank(query.text, sent, **self._options))

    def search(self, query: Query, **options: Any) -> Reply:
        return _reply(self._client.search(query.text, **self._options | options))


class Baseline:
    """A scorer in this process, over the candidates that it is given or that a service finds."""

    def __init__(
        self, scorer: Scorer, client: RerankClient | None = None, index: Mapping[str, object] | None = None
    ) -> None:
        self._scorer = scorer
        self._client = client
        self.settings: Mapping[str, object] = {
            "ranker": type(scorer).__name__,
            "model_revision": scorer.revision,
            "searched": index or {},
        }

    def rerank(self, query: Query, candidates: Sequence[CandidateSource]) -> Reply:
        """Equal scores keep the order of the candidates."""
        scores = self._scorer(query, candidates)
        best = sorted(range(len(candidates)), key=lambda position: -scores[position])
        ranks = tuple(float(len(best) - rank) for rank in range(len(best)))
        return Reply(tuple(candidates[position].doc_id for position in best), ranks, tuple(best), {})

    def search(self, query: Query, **options: Any) -> Reply:
        """Over what the service's own order holds."""
        if self._client is None:
            raise AssertionError("a baseline without a client was asked to search; this is a bug")
        found = self._client.search(query.text, **{**options, "model": "identity", "return_passages": True})
        hits = found.results  # each with its first-stage score, which `search` knows
        return self.rerank(query, [CandidateSource(hit.doc_id, hit.text, score=hit.first_stage_score) for hit in hits])


def _reply(reply: pb.RerankResponse | pb.SearchResponse) -> Reply:
    results = reply.results
    return Reply(
        tuple(result.doc_id for result in results),
        tuple(result.score for result in results),
        tuple(result.original_position for result in results),
        MessageToDict(reply.execution, preserving_proto_field_name=True),
    )
