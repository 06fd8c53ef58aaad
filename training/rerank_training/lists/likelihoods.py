"""Query likelihoods of the passages of training lists, kept in a file, so that a killed build goes on."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rerank.config import QueryLikelihoodModel, load_config
from rerank.errors import ConfigError
from rerank.names import did_you_mean
from rerank.rankers.base import rank_windows
from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from rerank.reranking.registry import load_query_likelihood
from rerank.types import Passage, Query, Window
from rerank.util.files import report_disk_errors
from rerank_training.lists.sampling import Pool

#: Passages between two writes, which are what a kill costs.
_BATCH = 64
_BUNDLED = QueryLikelihoodModel(name="query-likelihood", ranker="query-likelihood")


class QueryLikelihoods:
    """A teacher: the mean log-probability of the query's tokens after each passage, in nats per token.

    Each passage is read once for a query, also by later builds with the same file.

    Args:
        ranker: reads the passages.
        kept: what is known already, see `open_likelihoods`.
    """

    def __init__(self, ranker: QueryLikelihoodRanker, kept: sqlite3.Connection) -> None:
        self._ranker = ranker
        self._kept = kept

    def __call__(self, pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
        """The likelihood of each of the passages. See `rerank_training.lists.teachers.Teacher`."""
        keys = {passage.text: _key(pool.query, passage.text) for passage in passages}
        known = self._read(list(keys.values()))
        missing = [text for text, key in keys.items() if key not in known]
        for start in range(0, len(missing), _BATCH):
            texts = missing[start : start + _BATCH]
            scores = self._score(pool.query, texts)
            known |= self._keep({keys[text]: score for text, score in zip(texts, scores, strict=True)})
        return tuple(known[keys[passage.text]] for passage in passages)

    def _score(self, query: Query, texts: Sequence[str]) -> tuple[float, ...]:
        passages = [Passage(str(place), text) for place, text in enumerate(texts)]
        prepared = self._ranker.prepare(Query(query.text, instruction=query.instruction), passages)
        (ranking,) = rank_windows(self._ranker, [Window(prepared.query, prepared.passages)])
        return ranking.scores

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        rows = (self._kept.execute("SELECT key, score FROM likelihoods WHERE key = ?", [key]) for key in keys)
        return {key: score for found in rows for key, score in found}

    def _keep(self, scores: dict[bytes, float]) -> dict[bytes, float]:
        with self._kept:  # a transaction
            self._kept.executemany("INSERT INTO likelihoods VALUES (?, ?)", scores.items())
        return scores


@contextmanager
def open_likelihoods(file: Path, config: Path | None, model: str, device: str) -> Iterator[QueryLikelihoods]:
    """The teacher with a query-likelihood model, and with the likelihoods in a file until the block ends.

    Args:
        file: SQLite database of the likelihoods, which is created if it is not there.
        config: settings of the model; None: the bundled one.
        model: its name; empty: the first query-likelihood model of the settings.
        device: of the model.

    Raises:
        ConfigError: there is no such model, or the file cannot be used or holds the likelihoods of another model.
        CheckpointError: the model cannot be loaded.
    """
    settings = _model(config, model)
    ranker = load_query_likelihood(settings, device)
    scoring = {"passage_tokens": settings.passage_tokens, "precision": settings.precision}
    described = {"weights": ranker.info.model_revision, "template": ranker.info.template_sha256, **scoring}
    with report_disk_errors(file, "choose another file of --likelihoods"):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
    try:
        kept = sqlite3.connect(file)
        try:
            _check_model(kept, json.dumps(described), file)
            yield QueryLikelihoods(ranker, kept)
        finally:
            kept.close()
    except sqlite3.Error as error:
        raise ConfigError(f"{file} cannot be read or written: {error}; choose another file of --likelihoods") from error


def _model(config: Path | None, name: str) -> QueryLikelihoodModel:
    if config is None and not name:
        return _BUNDLED
    models = {m.name: m for m in load_config(config).models if isinstance(m, QueryLikelihoodModel)}
    if chosen := models.get(name or next(iter(models), "")):
        return chosen
    raise ConfigError(
        f"{config or 'the default settings'} has no model {name or 'at all'} with ranker: query-likelihood, but "
        f"{', '.join(models) or 'none'};{did_you_mean(name, models)} give --config with such a model"
    )


def _check_model(kept: sqlite3.Connection, described: str, file: Path) -> None:
    """Creates the tables. Raises: ConfigError if the file holds the likelihoods of another model."""
    with kept:
        kept.execute("CREATE TABLE IF NOT EXISTS likelihoods (key BLOB PRIMARY KEY, score REAL) WITHOUT ROWID")
        kept.execute("CREATE TABLE IF NOT EXISTS model (described TEXT)")
        if (found := kept.execute("SELECT described FROM model").fetchone()) is None:
            kept.execute("INSERT INTO model VALUES (?)", [described])
        elif found[0] != described:
            raise ConfigError(
                f"{file} holds the likelihoods of another model: {found[0]} instead of {described}; remove it, or "
                "choose another file of --likelihoods"
            )


def _key(query: Query, text: str) -> bytes:
    return hashlib.sha256(json.dumps([query.instruction, query.text, text]).encode()).digest()
