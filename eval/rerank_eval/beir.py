"""`eval-beir`: retrieves and reranks for the queries of a collection and measures the result.

rerank index --collection my-corpus --out indexes/my-corpus
eval-beir --collection my-corpus --index indexes/my-corpus --model identity --model pe-rank --out results/pe-rank
"""

from __future__ import annotations

from functools import partial

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import flags
from rerank.commands.run import run
from rerank_eval.settings import BeirSettings

app = CommandApp()


@app.command(example=example_in(__doc__))
@flags(BeirSettings)
def evaluate(settings: BeirSettings) -> None:
    """Retrieve and rerank, and measure nDCG@10 and other measures."""
    from rerank_eval.evaluation import run_evaluation  # imports scipy and grpc, which --help does not need

    run_evaluation(settings)


main = partial(run, app)
