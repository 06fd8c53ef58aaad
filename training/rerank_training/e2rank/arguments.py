"""Arguments of `train-e2rank`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rerank_training.trainer.flags import LORA_ALPHA, ListArguments, RankLossName, RunFlags, learning_rates

#: Default peak learning rates of an adapter and of all weights; the second is the paper's.
ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE = 2e-4, 5e-6


@dataclass(kw_only=True)
class E2RankArguments(ListArguments):
    """Arguments of E2Rank's training, in addition to `RunArguments`."""

    base: Annotated[
        str,
        "Encoder to start from, with pooling by the last token: a folder, a name on the hub, or settings such as "
        "'{name: DIR, pooling: lasttoken, end_token: \"<|endoftext|>\"}'.",
    ]
    instruction: Annotated[
        str | None, "Instruction in the prompts. Default: the base's if it has a manifest, otherwise E2Rank's."
    ] = None
    rank_loss: RankLossName = "ranknet"
    rank_weight: Annotated[
        float, "Weight of the ranking loss, which reads cosines of the passages with the vector of query and list."
    ] = 2.0
    passage_tokens: Annotated[int, "Queries and passages are truncated to this number of tokens."] = 1024
    lora_rank: Annotated[
        int, f"Rank of a LoRA adapter (alpha is {LORA_ALPHA}), which is merged at the end; 0: train all weights."
    ] = 0


@dataclass
class E2RankRunFlags(RunFlags):
    """The flags of a run; the default is one pass over the lists, as in the paper."""

    num_train_epochs: Annotated[float, "Number of passes over the training lists."] = 1.0
    learning_rate: Annotated[float | None, learning_rates(ADAPTER_LEARNING_RATE, WEIGHTS_LEARNING_RATE)] = None
