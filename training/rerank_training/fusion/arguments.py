"""Arguments of `train-fusion`: one dataclass field per command-line flag."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from rerank.errors import ConfigError
from rerank.names import DEFAULT_FIRST_STAGE, first_stage_weight
from rerank.types import FirstStage, FirstStageKind, FirstStageWeight
from rerank_training.trainer.flags import ListFiles, RankLossName, RunFlags

#: Peak learning rate without a flag.
LEARNING_RATE = 5e-4
_MAX_DEPTH = 1000


@dataclass(kw_only=True)
class FusionArguments(ListFiles):
    """Arguments of the training of a fusion, in addition to `FusionRunFlags`.

    Raises:
        ConfigError: a number is out of range.
    """

    lists: Annotated[str, "Judged lists: requests with --qrels or --clicks, or the lists of build-lists."] = ""
    index: Annotated[str, "Index folder from `rerank index`, which is searched for each judged query."] = ""
    first_stage: Annotated[FirstStage, "With --index: the first stage of the searches."] = DEFAULT_FIRST_STAGE
    depth: Annotated[int, "With --index: number of candidates of a search."] = 100
    collection: Annotated[
        str, "pydoc, or a folder in BEIR layout, with the queries and the judgements of its part test."
    ] = ""
    queries: Annotated[str, "With --index: lines of query_id, tab, text, or BEIR's queries.jsonl."] = ""
    clicks: Annotated[
        str,
        "Clicks in the place of judgements: lines of query, doc_id, clicks and optionally impressions, with tabs "
        "between. The query is its text, or with --queries or --lists its query_id.",
    ] = ""
    eval_lists: Annotated[
        str | None, "Held-out lists, on which the correction is measured. The result is the last save."
    ] = None
    held_out_share: Annotated[
        float, "Without --eval-lists: share of the queries that are held out, 0-0.9; 0 trains on all of them."
    ] = 0.2
    correction_lists: Annotated[int, "The fewest training lists with which a correction is trained."] = 300
    encoder: Annotated[str, "Encoder of the passages, a folder or a name on the hub; empty: all-MiniLM-L6-v2."] = ""
    sparse_encoder: Annotated[str, "Folder of a learned sparse encoder; empty: splade-tiny."] = ""
    first_stage_weight: Annotated[
        str,
        "Kind of the lists, lexical, hybrid or neural, or a number, as the service is set. Default: lexical; with "
        "--index, the kind of --first-stage.",
    ] = ""
    cosine_depth: Annotated[
        int,
        "Number of best passages of a list that are read, as in the settings of the fusion; a window has as many, or "
        "more. 0: all passages, as with --index.",
    ] = 30
    rank_loss: RankLossName = "softmax"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share <= 0.9:
            raise ConfigError(f"--held-out-share {self.held_out_share} is out of range; use 0 to 0.9")
        if self.cosine_depth < 0 or self.cosine_depth == 1:
            raise ConfigError(f"--cosine-depth {self.cosine_depth} ranks nothing; use 2 or more, or 0 for all passages")
        if not 2 <= self.depth <= _MAX_DEPTH:
            raise ConfigError(f"--depth {self.depth} is out of range; use 2 to {_MAX_DEPTH}")

    @property
    def kind(self) -> FirstStageWeight:
        """The kind of the lists, or their weight. Raises: InvalidRequest for another word."""
        default = self.first_stage.kind if self.index else FirstStageKind.LEXICAL
        return first_stage_weight(self.first_stage_weight) if self.first_stage_weight else default

    @property
    def depth_of_cosines(self) -> int:
        """The number of passages whose cosine the service reads; 0: all, as an index has their vectors."""
        return 0 if self.index else self.cosine_depth


@dataclass
class FusionRunFlags(RunFlags):
    """The flags of a run with defaults for a small network."""

    unshown = MappingProxyType({"weight_decay": 0.05})

    num_train_epochs: Annotated[float, "Number of passes over the training lists."] = 8.0
    learning_rate: Annotated[float | None, f"Peak learning rate. Default: {LEARNING_RATE:g}."] = None
    per_device_train_batch_size: Annotated[int, "Windows per step and device."] = 16
