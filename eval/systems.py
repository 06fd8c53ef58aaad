"""What is evaluated is what is served: the service at a target, or one that is started for the occasion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from rerank.cli import StrategyName
from rerank.client import RerankClient
from rerank.config import load_config
from rerank.service.process import service_process
from rerank.types import ScoredDoc
from rerank.v1 import rerank_pb2 as pb

RankerOption: TypeAlias = Annotated[
    Literal["identity", "pe-rank", "first", "generation"],
    typer.Option("--ranker", help="identity measures the first stage."),
]
ModelOption: TypeAlias = Annotated[
    str, typer.Option("--model", help="The ranker's checkpoint folder; with --target, the name of a model there.")
]
TemplateOption: TypeAlias = Annotated[
    str, typer.Option("--template", help="Name or file of the template for first and generation.")
]
TargetOption: TypeAlias = Annotated[str, typer.Option("--target", help="HOST:PORT of a service; empty: start one.")]
StrategyOption: TypeAlias = Annotated[StrategyName | None, typer.Option("--strategy", help="Default: the model's.")]
OutOption: TypeAlias = Annotated[Path, typer.Option("--out", help="Folder for run.trec and measures.json.")]


@contextmanager
def open_system(
    ranker: str, model: str, template: str, target: str, index: Path | None = None
) -> Iterator[tuple[RerankClient, str]]:
    """A client, and the name of the model to ask for.

    Raises:
        ConfigError: the options do not fit the ranker, or the service that was to be started did not start.
    """
    if target:
        with RerankClient(target) as client:
            yield client, model or ranker
        return
    given = {"path": model, "template": template}
    served = {"name": ranker, "ranker": ranker} | {key: value for key, value in given.items() if value}
    config = load_config(None, listen="127.0.0.1:0", index=index, models=[served])
    with service_process(config) as address, RerankClient(address) as client:
        yield client, ranker


def scored_docs(results: Iterable[pb.RankedCandidate]) -> list[ScoredDoc]:
    return [ScoredDoc(result.doc_id, result.score) for result in results]
