"""`rerank tune`: chooses model, depth and weights by your own queries and judgements, and writes service.yaml.

The evaluation imports the package `rerank` and not the other way round. It adds this command to `rerank` by the entry
point `rerank.commands` in pyproject.toml.

rerank tune --index indexes/mine --queries queries.tsv --qrels qrels.txt   # writes tuned/service.yaml
rerank tune --index indexes/mine --clicks clicks.tsv --out tuned           # lines of query, doc_id, clicks
rerank tune --requests lists.jsonl --qrels qrels.txt                       # lists of your own first stage
rerank tune --index indexes/pydoc --collection pydoc
"""

from __future__ import annotations

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import flags
from rerank_eval.tune_settings import TuneSettings


def add_to(app: CommandApp) -> None:
    """Adds the command to the application `rerank`."""
    app.command(example=example_in(__doc__))(flags(TuneSettings)(tune))


def tune(settings: TuneSettings) -> None:
    """Choose model, depth and weights by your judgements.

    Says whether reranking helps at all, by cross-validation, and writes the settings of a service.
    """
    from rerank_eval.tuning import run_tuning  # imports torch, which --help does not need

    run_tuning(settings)
