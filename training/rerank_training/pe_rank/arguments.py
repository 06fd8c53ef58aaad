"""Arguments of `train-pe-rank`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rerank.errors import ConfigError
from rerank_training.trainer.flags import LORA_ALPHA, ListArguments, RankLossName


@dataclass(kw_only=True)
class PERankArguments(ListArguments):
    """Arguments of PE-Rank's training, in addition to `RunArguments`.

    Raises:
        ConfigError: arguments contradict each other.
    """

    base: Annotated[
        str,
        "Model to start from, a folder or a name on the Hugging Face hub: a PE-Rank checkpoint in any published "
        "layout, the result of an alignment, or a causal language model without projector.",
    ]
    encoder: Annotated[str, "Encoder of the passages, a folder or a name on the hub; empty: all-MiniLM-L6-v2."] = ""
    objective: Annotated[
        Literal["align", "rank"], "align: the projector learns to keep the text; rank: all weights learn to rank."
    ] = "rank"
    template: Annotated[str | None, "Prompt template, a name or a YAML file, for a base that has none."] = None
    decoding: Annotated[
        Literal["one_step", "dynamic"],
        "Decoding to train for. one_step: all passages are scored in one step; dynamic: they are chosen one by one.",
    ] = "one_step"
    rank_loss: RankLossName = "listmle"
    text_weight: Annotated[
        float, "Weight of the ranking loss on prompts with vectors and texts; the loss on vectors alone has weight 1."
    ] = 1.0
    kl_weight: Annotated[
        float,
        "Weight of the KL divergence between the scores with and without texts; for dynamic decoding, its sum over "
        "the ranks, as in the paper.",
    ] = 0.2
    passage_tokens: Annotated[
        int,
        "Texts in prompts and texts to restore are truncated to this number of tokens; 0: to 64, or fewer if the texts "
        "of a window would not fit into the model's context.",
    ] = 0
    lora_rank: Annotated[
        int, f"Rank of the LoRA adapter (alpha is {LORA_ALPHA}), which is merged at the end; 0: train all weights."
    ] = 0
    layout: Annotated[
        Literal["rerank", "published"],
        "Layout of the result's files. published: the layout that the code of PE-Rank's authors reads. rerank serves "
        "both.",
    ] = "rerank"

    def __post_init__(self) -> None:
        if self.decoding == "dynamic" and self.rank_loss != "listmle":
            raise ConfigError(
                f"dynamic decoding is trained with listmle, one rank after the other, not with {self.rank_loss}; "
                "remove --rank-loss"
            )
        if self.layout == "published" and self.objective == "rank" and self.decoding != "dynamic":
            raise ConfigError(
                "--layout published: the code of PE-Rank's authors chooses one passage after the other, which is "
                "trained by --decoding dynamic"
            )
        if self.objective == "align" and (self.eval_lists or self.lora_rank):
            raise ConfigError(
                "--eval-lists and --lora-rank are for --objective rank; alignment trains the projector only"
            )
