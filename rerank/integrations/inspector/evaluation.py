"""The results of an evaluation: nDCG@10 of each query by each system, and the rankings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import ir_measures
from ir_measures import ScoredDoc, nDCG

from rerank.errors import CollectionError, ConfigError, NotFound
from rerank.integrations.inspector.sources import Sources, sources_of
from rerank.readers.qrels import Qrel

FIRST_STAGE = "first stage"
_MEASURE = nDCG @ 10


@dataclass(frozen=True, slots=True)
class SystemResults:
    """The results of one system.

    Attributes:
        values: nDCG@10 by query_id, for the judged queries that were asked.
        lines: the ranking of each query as a line of JSON, by query_id.
    """

    name: str
    values: Mapping[str, float]
    lines: Mapping[str, str]

    def reply(self, query_id: str) -> dict[str, Any]:
        """The ranking of a query: doc_ids, scores and positions, best first, and the execution."""
        reply: dict[str, Any] = json.loads(self.lines[query_id])["reply"]
        return reply


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of systems on one dataset. `first_stage`: query_id → nDCG@10 of the order before reranking."""

    title: str
    systems: Mapping[str, SystemResults]
    sources: Sources
    first_stage: Mapping[str, float]

    def overview(self) -> dict[str, Any]:
        """All systems with their mean, beginning with the first stage, and all queries with nDCG@10 by each system."""
        values = {FIRST_STAGE: self.first_stage} | {system.name: system.values for system in self.systems.values()}
        return {
            "title": self.title,
            "measure": str(_MEASURE),
            "systems": [{"name": name, "mean": fmean(of.values())} for name, of in values.items()],
            "queries": [
                {
                    "query_id": query_id,
                    "text": self.sources.queries.get(query_id, ""),
                    "values": {name: of.get(query_id, 0.0) for name, of in values.items()},
                }
                for query_id in self.first_stage
            ],
        }

    def ranking(self, name: str, query_id: str) -> dict[str, Any]:
        """A ranking in the JSON form of SearchResponse (rerank.proto), with the grades of judged passages by doc_id.

        Raises:
            NotFound: there is no such system, or it did not rank this query.
        """
        system = self.systems.get(name)
        if system is None or query_id not in system.lines:
            raise NotFound(f"there is no ranking of query {query_id!r} by system {name!r}; see /inspector/evaluation")
        reply = system.reply(query_id)
        texts = self.sources.find_texts(set(reply["doc_ids"]))
        rows = zip(reply["doc_ids"], reply["scores"], reply["positions"], strict=True)
        results = [
            {"doc_id": doc_id, "original_position": position, "score": score, "text": texts.get(doc_id, "")}
            for doc_id, score, position in rows
        ]
        grades = self.sources.grades.get(query_id, {})
        return {"results": results, "execution": reply["execution"], "grades": grades}


def read_evaluation(folder: Path) -> Evaluation:
    """Reads the results on one dataset that `eval-trec-dl` or `eval-beir` wrote into a folder (--out).

    Raises:
        ConfigError: the folder holds no results, or those of several datasets, or its sources cannot be found.
        CollectionError: a file cannot be read.
    """
    paths = sorted(folder.rglob("measures.json"))
    measured = {_name(folder, path): _read_json(path) for path in paths if path.with_name("trace.jsonl").is_file()}
    if not measured:
        raise ConfigError(f"{folder} holds no results of an evaluation; give the --out folder of one")
    if len({content["settings"]["qrels_sha256"] for content in measured.values()}) > 1:
        datasets = ", ".join(sorted({str(path.relative_to(folder).parts[0]) for path in paths}))
        raise ConfigError(f"{folder} holds results of several datasets; give the folder of one: {datasets}")
    systems = {name: _system(folder, name, content) for name, content in measured.items()}
    sources = sources_of(next(iter(measured.values()))["settings"], folder.absolute().name)
    queries = [query_id for query_id in next(iter(systems.values())).values if query_id in sources.grades]
    return Evaluation(_title(folder), systems, sources, _first_stage(systems.values(), queries, sources))


def _name(folder: Path, path: Path) -> str:
    """The name of a system: that of its folder, or of its ranker if it is the only system."""
    if path.parent != folder:
        return path.parent.relative_to(folder).as_posix()
    settings = _read_json(path)["settings"]
    return str(settings.get("model") or "default").partition("=")[0]


def _system(folder: Path, name: str, content: Mapping[str, Any]) -> SystemResults:
    trace = (folder / name if (folder / name).is_dir() else folder) / "trace.jsonl"
    rows = [line for line in trace.read_text(encoding="utf-8").split("\n")[1:] if line]
    lines = {json.loads(line)["query_id"]: line for line in rows}
    asked = {query_id: row for query_id, row in content["per_query"].items() if query_id in lines}
    return SystemResults(name, {query_id: row[str(_MEASURE)] for query_id, row in asked.items()}, lines)


def _first_stage(systems: Iterable[SystemResults], queries: Iterable[str], sources: Sources) -> dict[str, float]:
    """nDCG@10 of the candidates in the order of the first stage, which follows from the first system's positions."""
    system, docs, qrels = next(iter(systems)), list[ScoredDoc](), list[Qrel]()
    values = dict.fromkeys(queries, 0.0)
    for query_id in values:
        qrels += [Qrel(query_id, doc_id, grade) for doc_id, grade in sources.grades[query_id].items()]
        if query_id in system.lines:
            reply = system.reply(query_id)
            places = zip(reply["doc_ids"], reply["positions"], strict=True)
            docs += [ScoredDoc(query_id, doc_id, -position) for doc_id, position in places]
    return values | {metric.query_id: metric.value for metric in ir_measures.iter_calc([_MEASURE], qrels, docs)}


def _title(folder: Path) -> str:
    summary = folder / "summary.json"
    return str(_read_json(summary)["title"]) if summary.is_file() else folder.absolute().name


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content
    except (OSError, ValueError) as error:
        raise CollectionError(f"{path} cannot be read: {error}") from error
