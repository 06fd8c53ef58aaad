"""`eval-trec-dl`: reranks the candidates of request files or TREC runs and measures the result.

eval-trec-dl --requests requests.jsonl --qrels qrels.txt --model identity --model pe-rank --out results/pe-rank
eval-trec-dl --requests run.trec --collection my-corpus --model pe-rank --out results/my-run
"""

from __future__ import annotations

from functools import partial

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import flags
from rerank.commands.run import run
from rerank_eval.settings import TrecDLSettings

app = CommandApp()


@app.command(example=example_in(__doc__))
@flags(TrecDLSettings)
def evaluate(settings: TrecDLSettings) -> None:
    """Rerank the candidates of request files or TREC runs, and measure nDCG@10 and other measures."""
    from rerank_eval.evaluation import run_evaluation  # imports scipy and grpc, which --help does not need

    run_evaluation(settings)


main = partial(run, app)
