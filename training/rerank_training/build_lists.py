"""`build-lists`: makes training lists from requests, or from a collection with judged queries.

build-lists --requests requests.jsonl --qrels qrels.txt --teacher fusion --lists-per-query 5 --out lists/dl21.jsonl
build-lists --collection collections/mine --split train --teacher qrels --out lists/mine.jsonl
"""

from __future__ import annotations

from functools import partial

from rerank.commands.app import CommandApp, example_in
from rerank.commands.flags import UNDERSCORES_TOO, flags
from rerank.commands.run import run
from rerank_training.lists.settings import BuildListsSettings

app = CommandApp()


def build_lists(settings: BuildListsSettings) -> None:
    """Make training lists for train-first and train-pe-rank: queries, passages, and the relevance of each passage."""
    from rerank_training.lists.building import build  # imports torch, which --help and wrong flags need not wait for

    build(settings)


app.command(example=example_in(__doc__), context_settings=UNDERSCORES_TOO)(flags(BuildListsSettings)(build_lists))


main = partial(run, app)
