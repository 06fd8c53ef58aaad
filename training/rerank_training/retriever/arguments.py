"""Arguments of `distill-retriever`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rerank.errors import ConfigError
from rerank_training.trainer.flags import RANK_LOSS_NAMES, RunFlags

#: Losses that read the distances between the teacher's scores. A reranker gives an order only.
_DISTANCE_LOSSES = {"kl", "listnet", "margin-mse"}


@dataclass
class RetrieverArguments:
    """Arguments of the distillation, in addition to `RetrieverRunFlags`.

    Raises:
        ConfigError: the loss is unknown, or arguments contradict each other.
    """

    index: str = field(metadata={"help": "Folder written by `rerank index`; its encoder is trained."})
    queries: str = field(
        metadata={"help": "Folder in BEIR layout with queries.jsonl, and with qrels/ if --held-out is given."}
    )
    held_out: str = field(
        default="",
        metadata={"help": "Name of judgements, as in qrels/NAME.tsv: their queries are evaluated, not trained on."},
    )
    teacher: Literal["fusion", "reranker"] = field(
        default="fusion",
        metadata={"help": "fusion: z-scores of BM25 and of the untrained encoder; reranker: the order of a ranker."},
    )
    config: str | None = field(
        default=None, metadata={"help": "For --teacher reranker: YAML settings of its models; see rerank/config.py."}
    )
    model: str = field(
        default="", metadata={"help": "For --teacher reranker: name of one of its models; empty: the first."}
    )
    rank_loss: str = field(default="ranknet", metadata={"help": f"Ranking loss: one of {', '.join(RANK_LOSS_NAMES)}."})
    scale: float = field(
        default=20.0, metadata={"help": "Factor of the cosines in the loss: one over the temperature."}
    )
    in_batch_weight: float = field(
        default=0.0, metadata={"help": "Weight of a contrastive loss with the batch's other passages as negatives."}
    )
    rounds: int = field(
        default=1, metadata={"help": "Number of rounds; each finds and grades passages anew, and trains on them."}
    )
    depth: int = field(
        default=100, metadata={"help": "Number of passages that BM25 and the encoder each find per query."}
    )
    list_size: int = field(
        default=16, metadata={"help": "Number of a query's passages in a training step, sampled at random."}
    )
    text_tokens: int = field(
        default=0,
        metadata={"help": "Tokens to which texts are truncated in training; 0: as many as the encoder reads."},
    )
    lora_rank: int = field(
        default=16, metadata={"help": "Rank of the LoRA adapter, which is merged at the end; 0: train all weights."}
    )
    lora_alpha: int = field(default=32, metadata={"help": "Scale of the LoRA adapter, divided by its rank."})

    def __post_init__(self) -> None:
        if self.rank_loss not in RANK_LOSS_NAMES:
            raise ConfigError(f"--rank-loss {self.rank_loss!r} is not one of {', '.join(RANK_LOSS_NAMES)}")
        if self.teacher == "reranker" and self.rank_loss in _DISTANCE_LOSSES:
            raise ConfigError(
                f"a reranker gives an order, but {self.rank_loss} reads the distances between scores; use --rank-loss "
                "ranknet or --teacher fusion"
            )
        if self.rounds < 1:
            raise ConfigError(f"{self.rounds} rounds train nothing; use 1 or more")
        if self.list_size < 2:
            raise ConfigError(f"lists of {self.list_size} passages cannot be ranked; use a --list-size of 2 or more")


#: Peak learning rates of an encoder without a flag.
ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE = 2e-4, 2e-5


@dataclass
class RetrieverRunFlags(RunFlags):
    """The flags of a run with defaults for a small encoder with an adapter."""

    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": f"Peak learning rate. Default: {ADAPTER_LEARNING_RATE:g} for an adapter (LoRA), "
            f"{WEIGHTS_LEARNING_RATE:g} for all weights."
        },
    )
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Queries per step and device."})
    ddp_timeout: int = field(
        default=7 * 86400,
        metadata={"help": "Seconds that processes wait for the main one, which finds passages and encodes them."},
    )
