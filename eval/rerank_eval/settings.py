"""Settings of the evaluation commands: each dataclass field is a command-line flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from rerank.collections import NAMED
from rerank.commands.options import KEY_HELP, Encoder, FirstStageOption, FirstStageWeightOption
from rerank.config import Precision
from rerank.names import DEFAULT_FIRST_STAGE
from rerank.types import FeedbackMethod, FeedbackSettings

#: A fusion of the cosines of all passages and the first stage, without other signals, feedback or smoothing.
_COSINE: Mapping[str, object] = {
    "ranker": "fusion",
    **dict.fromkeys(("lexical_weight", "sparse_weight", "smoothing_weight"), 0.0),
    **dict.fromkeys(("cosine_depth", "similar_passages"), 0),
}
#: Name of a baseline → settings of its model: the encoder's cosine alone, or with .3 times the first stage's score.
BASELINES: Mapping[str, Mapping[str, object]] = {
    "cosine": {**_COSINE, "first_stage_weight": 0.0},
    "z-score": {**_COSINE, "first_stage_weight": 0.3},
}
#: The methods of relevance feedback.
UPDATES = (
    FeedbackMethod.WEIGHTED_RANKNET,
    FeedbackMethod.WEIGHTED_RANKNET_FIRST,
    FeedbackMethod.KL,
    FeedbackMethod.ROCCHIO,
    FeedbackMethod.CHAIN,
)
#: The name of the report's row with the best order of the candidates, and of the teacher of relevance feedback that
#: ranks by the judgements.
ORACLE = "oracle"
_COLLECTIONS = (
    f"Folder in BEIR layout (corpus.jsonl, queries.jsonl, qrels/), {', '.join(NAMED)}, trec-dl-2019 to trec-dl-2023, "
    "or a name of ir_datasets"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Settings of both commands: the systems to evaluate, how they are queried, and how the report is made."""

    model: Annotated[
        list[str],
        "A model to evaluate: a bundled one (default, pe-rank, …), one of --config or of the service at "
        "--target; NAME=PATH or NAME=RANKER:PATH of a checkpoint; NAME=MODEL gives another name. "
        f"{' and '.join(BASELINES)} are baselines of the encoder. Repeatable: all are compared with the first "
        "stage and with the first of them. Default: default, the service's own.",
    ] = field(default_factory=list)
    config: Annotated[
        Path | None, "YAML file of the service that is started: its models, their strategies and cascades."
    ] = None
    encoder: Encoder = None
    precision: Annotated[
        Precision | None,
        "Number format of the models of the service that is started; default: from --config, else auto. In "
        "float32 the figures do not depend on the processor.",
    ] = None
    target: Annotated[
        str, f"HOST:PORT of a running service; default: none, the evaluation starts a service. {KEY_HELP}"
    ] = ""
    first_stage_weight: FirstStageWeightOption = None
    concurrency: Annotated[int, typer.Option(min=1, max=1000, help="Number of concurrent queries.")] = 1
    queries: Annotated[
        Path | None,
        "Ask these queries only: a file with the id of a query in each line, or a file whose texts are asked: lines of "
        "query_id, tab, text, or BEIR's queries.jsonl or its folder.",
    ] = None
    limit: Annotated[int, typer.Option(min=0, help="Ask only the first of the judged queries; 0: all.")] = 0
    split: Annotated[str, "Split of a collection in BEIR layout: its judgements are qrels/SPLIT.tsv."] = "test"
    rel: Annotated[
        int,
        typer.Option(
            min=0,
            help="Least grade that RR, AP and R count as relevant; 0: 2 for judgements on the scale of TREC Deep "
            "Learning (grades 0 to 3, and many above 1), otherwise 1.",
        ),
    ] = 0
    out: Annotated[Path, "Folder for the results; a run that was killed resumes in it."]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeirSettings(EvaluationSettings):
    """Settings of `eval-beir`."""

    collection: Annotated[list[str], f"{_COLLECTIONS}. Repeatable."]
    index: Annotated[list[Path], "Index of each --collection, made by `rerank index`; not needed with --target."] = (
        field(default_factory=list)
    )
    first_stage: FirstStageOption = DEFAULT_FIRST_STAGE
    depth: Annotated[int, typer.Option(min=1, help="Number of candidates that the first stage retrieves.")] = 100
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback",
            help="Measure relevance feedback: dense retrieval with query vectors that the ranking of each system has "
            "changed, and a second ranking by the system of what this finds. Needs --index.",
        ),
    ] = False
    feedback_ranking: Annotated[
        bool,
        "With --feedback: rank a second time, which takes twice the time of the first; without it, only dense "
        "retrieval is measured.",
    ] = True
    feedback_loss: Annotated[
        list[FeedbackMethod],
        typer.Option(
            parser=FeedbackMethod,
            metavar=f"[{'|'.join(UPDATES)}]",
            help="With --feedback: how a ranking changes the vectors. kl reads scores; chain reads the scores of a "
            "cascade's preranker and then the order; the others read the order. Repeatable; default: all, and in the "
            "second search weighted-ranknet.",
        ),
    ] = field(default_factory=list)
    feedback_steps: Annotated[
        int, typer.Option(min=0, help="Number of gradient steps; 0: 20, and 100 for kl, with which chain begins.")
    ] = 0
    feedback_rate: Annotated[
        float, typer.Option(min=0, help="Learning rate; 0: 0.001, and 0.005 for kl, with which chain begins.")
    ] = 0.0

    @property
    def second_search(self) -> dict[str, object] | None:
        """The fields of the message Feedback (rerank.proto) of the second search; None if there is no second search.

        A first stage without dense retrieval has no query vector to update.
        """
        method = self.feedback_loss[0] if self.feedback_loss else FeedbackMethod.WEIGHTED_RANKNET
        is_requested = self.feedback and self.feedback_ranking and self.first_stage.reads_vectors
        return asdict(self.feedback_settings(method)) if is_requested else None

    def feedback_settings(self, method: FeedbackMethod) -> FeedbackSettings:
        """The settings of an update by this method."""
        return FeedbackSettings(method, steps=self.feedback_steps, learning_rate=self.feedback_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrecDLSettings(EvaluationSettings):
    """Settings of `eval-trec-dl`."""

    requests: Annotated[
        list[Path],
        "RankLLM request file: queries with their candidates. With --collection, a TREC run. "
        "Repeatable, once for each dataset.",
    ]
    qrels: Annotated[
        list[str],
        "Judgements of each --requests: a file in the form of TREC or BEIR, trec-dl-2019 to trec-dl-2023, or "
        "a name of ir_datasets; not needed with --collection.",
    ] = field(default_factory=list)
    collection: Annotated[
        list[str], f"Collection with the passages of a TREC run, one for each --requests. {_COLLECTIONS}."
    ] = field(default_factory=list)
    depth: Annotated[int, typer.Option(min=0, help="Number of candidates of each query to rerank; 0: all.")] = 0


#: Settings of either command.
CommandSettings: TypeAlias = BeirSettings | TrecDLSettings
