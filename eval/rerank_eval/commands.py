"""The commands of this package. Slow imports are made when a command runs, so that --help is quick."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rerank.commands.app import CommandApp, flags
from rerank.commands.run import run
from rerank_eval.settings import BeirSettings, TrecDLSettings


def _command(settings_type: type, *, example: str) -> Callable[[Callable[[Any], None]], partial[None]]:
    """Decorates a function of settings: it becomes a command with one flag for each field of the settings."""

    def decorate(evaluate: Callable[[Any], None]) -> partial[None]:
        app = CommandApp()
        app.command(example=example)(flags(settings_type)(evaluate))
        return partial(run, app)

    return decorate


@_command(
    BeirSettings,
    example="""
rerank index --collection my-corpus --out indexes/my-corpus
eval-beir --collection my-corpus --index indexes/my-corpus --model identity --model pe-rank --out results/pe-rank""",
)
def eval_beir(settings: BeirSettings) -> None:
    """Retrieve and rerank, and measure nDCG@10 and other measures."""
    from rerank_eval.evaluation import run_evaluation

    run_evaluation(settings)


@_command(
    TrecDLSettings,
    example="""
eval-trec-dl --requests requests.jsonl --qrels qrels.txt --model identity --model pe-rank --out results/pe-rank
eval-trec-dl --requests run.trec --collection my-corpus --model pe-rank --out results/my-run""",
)
def eval_trec_dl(settings: TrecDLSettings) -> None:
    """Rerank the candidates of request files or TREC runs, and measure nDCG@10 and other measures."""
    from rerank_eval.evaluation import run_evaluation

    run_evaluation(settings)
