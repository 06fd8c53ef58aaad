"""Arguments of `distill-retriever`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from rerank.errors import ConfigError
from rerank_training.trainer.flags import LORA_ALPHA, RankLossName, RunFlags, learning_rates

#: Losses that read the differences between the teacher's scores, which a teacher that only orders does not have.
_DISTANCE_LOSSES = {"kl", "listnet"}


@dataclass
class RetrieverArguments:
    """Arguments of the distillation, in addition to `RetrieverRunFlags`.

    Raises:
        ConfigError: arguments contradict each other.
    """

    index: Annotated[str, "Folder written by `rerank index`; its encoder is trained."]
    queries: Annotated[
        str,
        "Queries: a file with lines of query_id, tab, text; or BEIR's queries.jsonl, or its folder. --held-out reads "
        "judgements in qrels/ next to the file.",
    ]
    held_out: Annotated[
        str, "Name of judgements, as in qrels/NAME.tsv, whose queries are held out for the evaluation."
    ] = ""
    teacher: Annotated[
        Literal["fusion", "reranker"],
        "fusion: z-scores of BM25 and of the untrained encoder; reranker: the order of a ranker, and for the "
        "losses kl and listnet its scores.",
    ] = "fusion"
    config: Annotated[str | None, "For --teacher reranker: YAML settings of its models."] = None
    model: Annotated[str, "For --teacher reranker: name of one of its models; empty: the first."] = ""
    rank_loss: RankLossName = "ranknet"
    depth: Annotated[int, "Number of passages that BM25 and the encoder each find per query."] = 100
    list_size: Annotated[int, "Number of a query's passages in a training step, sampled at random."] = 16
    lora_rank: Annotated[
        int, f"Rank of the LoRA adapter (alpha is {LORA_ALPHA}), which is merged at the end; 0: train all weights."
    ] = 16

    @property
    def reads_scores(self) -> bool:
        """True if the loss reads the differences between the teacher's scores."""
        return self.rank_loss in _DISTANCE_LOSSES

    def __post_init__(self) -> None:
        if self.list_size < 2:
            raise ConfigError(f"lists of {self.list_size} passages cannot be ranked; use a --list-size of 2 or more")


#: Default peak learning rates of an adapter and of all weights of an encoder.
ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE = 2e-4, 2e-5


@dataclass
class RetrieverRunFlags(RunFlags):
    """The flags of a run, with defaults for a small encoder with an adapter."""

    #: Time in seconds that processes wait for the main process while it retrieves passages and encodes the collection.
    unshown = MappingProxyType({"ddp_timeout": 7 * 86400})

    output_dir: Annotated[
        str, "Folder to create; it gets `encoder`, its `index`, report.json, and `training` with the lists."
    ]
    learning_rate: Annotated[float | None, learning_rates(ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE)] = None
    per_device_train_batch_size: Annotated[int, "Queries per step and device."] = 8
