"""`eval-relevance`: measures the relevance of a model's results on judged lists, and fits its curves.

eval-relevance default --requests lists.jsonl --qrels qrels.txt --rel 2
eval-relevance default --requests results/pydoc/run.trec --qrels pydoc --fit
"""

from __future__ import annotations

from functools import partial

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import flags
from rerank.commands.run import run
from rerank_eval.settings import RelevanceSettings

app = CommandApp()


@app.command(example=example_in(__doc__))
@flags(RelevanceSettings)
def evaluate(settings: RelevanceSettings) -> None:
    """Measure whether the relevance of results is a probability, and fit it to judgements."""
    from rerank_eval.relevance_fit import evaluate_relevance  # imports torch, which --help does not need

    evaluate_relevance(settings)


main = partial(run, app)
