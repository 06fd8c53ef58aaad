"""Arguments of `train-pe-rank`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rerank.errors import ConfigError
from rerank_training.trainer.flags import RANK_LOSS_NAMES, ListArguments


@dataclass(kw_only=True)
class PERankArguments(ListArguments):
    """Arguments of PE-Rank's training, in addition to `RunArguments`.

    Raises:
        ConfigError: the loss is unknown, or arguments contradict each other.
    """

    base: str = field(
        metadata={"help": "Folder to start from: a PE-Rank checkpoint, or a causal language model without projector."}
    )
    encoder: str = field(
        default="",
        metadata={"help": "Encoder of the passages, a folder or a name on the hub; empty: all-MiniLM-L6-v2."},
    )
    stage: Literal["align", "rank"] = field(
        default="rank",
        metadata={"help": "align: train the projector to keep the text; rank: train all weights to rank."},
    )
    template: str | None = field(
        default=None,
        metadata={"help": "Prompt template, a name or a YAML file, for a base that does not name its own."},
    )
    decoding: Literal["one_step", "dynamic"] = field(
        default="one_step",
        metadata={"help": "Decoding for which the model is trained: all passages in one step, or one after the other."},
    )
    rank_loss: str = field(
        default="listmle",
        metadata={"help": f"Ranking loss: one of {', '.join(RANK_LOSS_NAMES)}; dynamic decoding takes listmle only."},
    )
    vectors_weight: float = field(
        default=1.0, metadata={"help": "Weight of the ranking loss where passages are vectors."}
    )
    text_weight: float = field(
        default=1.0, metadata={"help": "Weight of the ranking loss where passages are vectors with their texts."}
    )
    kl_weight: float = field(
        default=0.2,
        metadata={
            "help": "Weight of the KL divergence between the scores with and without texts; for dynamic decoding, its "
            "sum over the ranks, as in the paper."
        },
    )
    passage_text_tokens: int = field(
        default=0,
        metadata={
            "help": "Number of tokens to which a shown or restored text is truncated; 0: 64, or as many as fit into "
            "the model's context for each passage of a window."
        },
    )
    lora_rank: int = field(
        default=0, metadata={"help": "Rank of the LoRA adapter, which is merged at the end; 0: train all weights."}
    )
    lora_alpha: int = field(default=32, metadata={"help": "Scale of the LoRA adapter, divided by its rank."})

    def __post_init__(self) -> None:
        if self.rank_loss not in RANK_LOSS_NAMES:
            raise ConfigError(f"--rank-loss {self.rank_loss!r} is not one of {', '.join(RANK_LOSS_NAMES)}")
        if self.decoding == "dynamic" and self.rank_loss != "listmle":
            raise ConfigError(
                f"dynamic decoding is trained with listmle, one rank after the other, not with {self.rank_loss}; "
                "remove --rank-loss"
            )
        if self.stage == "align" and (self.eval_lists or self.lora_rank):
            raise ConfigError("--eval-lists and --lora-rank are for --stage rank; alignment trains the projector only")
