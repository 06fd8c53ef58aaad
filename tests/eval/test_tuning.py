"""`rerank tune` on lists whose best ranking is known, with fake models in place of those that `--config` names."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ir_measures
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from ir_measures import nDCG
from rerank_eval.cross_validation import p_of_gain
from rerank_eval.recorded_scores import Recorder
from rerank_eval.statistics import compare
from rerank_eval.tune import add_to
from rerank_eval.tune_settings import TuneSettings
from rerank_eval.tuning import run_tuning
from rerank_eval.tuning_report import Choice, Tuning
from typer.testing import CliRunner

from rerank.commands.app import CommandApp
from rerank.commands.cli import app
from rerank.config import FusionModel, ServiceConfig, load_config
from rerank.errors import CollectionError, ConfigError, IndexMismatch, RankerFailure
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.identity import IdentityRanker
from rerank.readers.qrels import read_qrels
from rerank.readers.requests import read_requests
from rerank.reranking.blocking import Reranker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.types import EncodedWindow, Passage, ScoreKind, Window, WindowRanking
from tests.eval.data import write, write_qrels, write_requests
from tests.fakes import NumberRanker, number_in

#: A text has the number that the ranker "small" reads, and after "whole" the number of the other one.
TEXT = "relevance {} whole {}"


class WholeRanker(NumberRanker):
    """Reads vectors, and scores by the second number of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(self.info, reads_vectors=True)

    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        super().rank(windows)
        return [
            WindowRanking(tuple(number_in(p.text.partition("whole")[2]) for p in encoded.window.passages))
            for encoded in windows
        ]


class DyingRanker(NumberRanker):
    """Fails at its window number `fails_at`, once."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self._fails_at = fails_at

    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        scores = super().rank(windows)
        if len(self.ranked) == self._fails_at:
            raise RuntimeError("gone")
        return scores


class NumberEncoder:
    """Stands for both encoders of a fusion: the cosine is the number of a text, the sparse score that after "whole"."""

    id = SimpleNamespace(name="number", sha256="r1", vectors_sha256="r1")
    device = SimpleNamespace(type="cpu")
    vector_cache = cache = SimpleNamespace(put=lambda *_: None, max_bytes=0)
    max_text_tokens = 256

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def pick_dtype(self, dtype: str) -> str:
        return "float32"

    def check_query(self, text: str) -> None:
        pass

    def beginning(self, text: str) -> str:
        return text

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def encode_passages(self, texts: Sequence[str], dtype: str = "auto") -> npt.NDArray[np.float32]:
        self.encoded += texts
        cosines = [number_in(text.partition("whole")[0]) if "whole" in text else 1.0 for text in texts]
        return np.array([(cosine, (1 - cosine**2) ** 0.5) for cosine in cosines], dtype=np.float32)

    encode_queries = encode_passages

    def encode_query(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(unit=lambda: text)

    def scored(self, query: str, passages: Sequence[Passage]) -> list[Passage]:
        return [replace(each, sparse_score=number_in(each.text.partition("whole")[2])) for each in passages]


def fusion_of(model: Mapping[str, Any]) -> FusionRanker:
    encoder: Any = NumberEncoder()
    return FusionRanker(FusionModel(**model), encoder, encoder)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Ranker]:
    """The models of every reranker that is loaded, by name; tests put others in."""
    rankers: dict[str, Ranker] = {"small": NumberRanker(), "whole": WholeRanker()}

    def load(config: ServiceConfig) -> AsyncReranker:
        encoder: Any = SimpleNamespace(vector_cache=SimpleNamespace(max_bytes=0))
        models = [model for model in config.models if model.name in rankers or model.name == "identity"]
        used = {model.name: rankers.get(model.name) or IdentityRanker() for model in models}
        return AsyncReranker(config, encoder, None, ModelRegistry(models, used))

    monkeypatch.setattr("rerank.reranking.blocking.load_reranker", load)
    monkeypatch.setattr("rerank_eval.tuning.p_of_gain", partial(p_of_gain, permutations=39))
    return rankers


def settings_of(folder: Path, **others: Any) -> TuneSettings:
    """Settings with a service of two models, "small" and "whole"."""
    models = [{"name": "small", "ranker": "first", "order_prior": 0.5}, {"name": "whole", "ranker": "pe-rank"}]
    config = folder / "mine.yaml"
    config.write_text(yaml.safe_dump({"models": models, "drain_s": 7.0}), encoding="utf-8")
    given = {"config": config, "only": ["small", "whole"], "out": folder / "tuned"}
    return TuneSettings(**given | others)


def lists(
    folder: Path, numbers: Callable[[random.Random, int], tuple[float, float]], queries: int = 30, passages: int = 12
) -> dict[str, Any]:
    """Settings of lists with one relevant passage each, at a random place.

    Args:
        numbers: from a passage's grade to the numbers that the two rankers read.
    """
    rng, texts, grades = random.Random(0), {}, {}
    for query in map(str, range(queries)):
        relevant = rng.randrange(passages)
        grades[query] = {f"d{place}": int(place == relevant) for place in range(passages)}
        texts[query] = {doc_id: TEXT.format(*numbers(rng, grade)) for doc_id, grade in grades[query].items()}
    requests = write_requests(folder / "requests.jsonl", texts)
    return {"requests": requests, "qrels": write_qrels(folder / "qrels.txt", grades)}


def knows(rng: random.Random, grade: int) -> tuple[float, float]:
    """ "small" knows the grades, "whole" knows nothing."""
    return grade, round(rng.random(), 3)


def tuned(settings: TuneSettings) -> dict[str, Any]:
    """The settings that are written."""
    run_tuning(settings)
    content: dict[str, Any] = yaml.safe_load((settings.out / "service.yaml").read_text(encoding="utf-8"))
    return content


def test_model_that_knows_the_grades_is_chosen_over_the_whole_list(
    tmp_path: Path, fakes: Mapping[str, Ranker], capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve candidates: a depth of 10 misses some of the relevant passages."""
    settings = settings_of(tmp_path, **lists(tmp_path, knows), rerank_depths="10, 12", depth=12)
    written = tuned(settings)
    assert written["models"][0] == {
        "name": "tuned",
        "ranker": "first",
        "order_prior": 0.5,
        "strategy": "single",
        "window_size": 12,
        "interpolation": {"first_stage_weight": 0.0},
    }
    assert [model["name"] for model in written["models"]] == ["tuned", "small", "whole", "identity"]
    assert written["drain_s"] == 7.0  # the settings of --config are kept
    printed = capsys.readouterr().out
    assert "Reranking helps: on queries that the choice did not see, nDCG@10 is 1.000, and that of the first" in printed
    assert (tmp_path / "tuned" / "report.md").read_text(encoding="utf-8").startswith("# Does reranking help?")


@pytest.mark.parametrize("numbers", [lambda rng, grade: (-grade, -grade), lambda rng, _: (rng.random(), rng.random())])
def test_models_that_harm_or_know_nothing_leave_the_first_stage(
    tmp_path: Path, fakes: Mapping[str, Ranker], numbers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(tmp_path, **lists(tmp_path, numbers), rerank_depths="5,10")
    assert tuned(settings)["models"][0] == {"name": "identity", "ranker": "identity"}
    printed = capsys.readouterr().out
    assert "Reranking was not shown to help" in printed
    assert "Each gain is slightly optimistic, because its weights were chosen on the same queries." in printed


def test_verdict_without_a_gain_says_which_gains_can_be_detected() -> None:
    """Two queries gain .2 and lose .2 beside 23 that stay."""
    first = np.full(25, 0.5)
    held_out = first + np.array([0.2, -0.2, *[0.0] * 23])
    comparison = compare(held_out.tolist(), first.tolist())
    choices, values = [Choice(), Choice("small")], np.stack([first, held_out])
    verdict = Tuning(choices, values, [0.0, 1.0], 1, held_out, [1], comparison, 1.0, ()).verdict
    assert verdict.endswith("With 25 queries, only gains of 0.034 or more can be detected.")


def test_written_service_ranks_as_was_measured(tmp_path: Path, fakes: Mapping[str, Ranker]) -> None:
    """Both models know a part: "whole" brings relevant passages to the top, where "small" decides."""

    def partly(rng: random.Random, grade: int) -> tuple[float, float]:
        return grade + rng.gauss(0, 0.35), grade + rng.gauss(0, 0.4)

    given = lists(tmp_path, partly, queries=60, passages=60)
    settings = settings_of(tmp_path, **given, rerank_depths="4,8", depth=60)
    written = tuned(settings)
    assert [model["name"] for model in written["models"]][:2] == ["tuned", "tuned-preranker"]
    assert written["models"][0]["strategy"] == "cascade"
    config = load_config(settings.out / "service.yaml")
    rankers = {"tuned": fakes["small"], "tuned-preranker": fakes["whole"], "identity": IdentityRanker()}
    registry = ModelRegistry([model for model in config.models if model.name in rankers], rankers)
    encoder: Any = SimpleNamespace(vector_cache=SimpleNamespace(max_bytes=0))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "rerank.reranking.blocking.load_reranker", lambda _: AsyncReranker(config, encoder, None, registry)
        )
        with Reranker(config) as reranker:
            for request in read_requests(given["requests"]):
                ranked = reranker.rerank(request.query, request.candidates).ranked
                rows = ((item.candidate.passage.doc_id, -rank) for rank, item in enumerate(ranked))
                found += [ir_measures.ScoredDoc(request.query.query_id, *row) for row in rows]
    mean = ir_measures.calc_aggregate([nDCG @ 10], read_qrels(given["qrels"]), found)[nDCG @ 10]
    tuned_model = written["models"][0]
    weight = f"{tuned_model['interpolation']['first_stage_weight']:g}"
    row = f"whole, then small over the first {tuned_model['window_size']}, first_stage_weight {weight} | {mean:.4f} |"
    assert row in (settings.out / "report.md").read_text(encoding="utf-8")


FUSION = {
    "name": "fused",
    "ranker": "fusion",
    "interpolation": {"first_stage_weight": 0.3},
    "sparse_weight": 0.25,
    "feedback_passages": 0,
    "full_agreement": 0.0,
}


def fusion_settings(
    folder: Path, fakes: dict[str, Ranker], numbers: Any, fusion: Mapping[str, Any] = FUSION, **others: Any
) -> TuneSettings:
    """Settings with a service of one fusion."""
    fakes["fused"] = fusion_of(fusion)
    write(folder / "fusion.yaml", yaml.safe_dump({"models": [fusion]}))
    given = {"config": folder / "fusion.yaml", "only": ["fused"], **others}
    return settings_of(folder, **lists(folder, numbers, queries=40, passages=20), depth=20, **given)


def by_sparse_score(rng: random.Random, grade: int) -> tuple[float, float]:
    """The cosine and the first stage know nothing."""
    return round(rng.random(), 3), round(grade + rng.gauss(0, 0.3), 3)


def test_fusion_gets_the_weights_that_its_lists_need(tmp_path: Path, fakes: dict[str, Ranker]) -> None:
    settings = fusion_settings(tmp_path, fakes, by_sparse_score)
    written = tuned(settings)["models"][0]
    weight = written["interpolation"]["first_stage_weight"]
    assert weight < 0.3
    weights = {"interpolation": {"first_stage_weight": weight}, "sparse_weight": 1.0}
    assert written == {**FUSION, **weights, "name": "tuned", "strategy": "single"}
    report = (settings.out / "report.md").read_text(encoding="utf-8")
    assert "| fused, first_stage_weight 0.3, sparse_weight 0.25 (default) |" in report
    served = FusionRanker(FusionModel(**written), *2 * [cast(Any, NumberEncoder())])
    found = []
    for request in read_requests(settings.requests):  # type: ignore[arg-type]
        passages = [Passage(each.doc_id, each.text or "") for each in request.candidates]
        prepared = served.prepare(request.query, passages)
        scores = tuple(each.score or 0.0 for each in request.candidates)
        window = Window(prepared.query, prepared.passages, first_stage=scores, first_stage_weight=weight)
        (ranking,) = rank_windows(served, [window])
        order = enumerate(ranking.permutation)
        found += [ir_measures.ScoredDoc(request.query.query_id, passages[place].doc_id, -rank) for rank, place in order]
    mean = ir_measures.calc_aggregate([nDCG @ 10], read_qrels(settings.qrels), found)[nDCG @ 10]  # type: ignore[arg-type]
    assert f"| fused, first_stage_weight {weight:g}, sparse_weight 1 | {mean:.4f} |" in report


@pytest.mark.parametrize("corrected", [True, False])
def test_fusion_with_a_correction_keeps_the_sparse_score_that_it_needs(
    tmp_path: Path, fakes: dict[str, Ranker], monkeypatch: pytest.MonkeyPatch, corrected: bool
) -> None:
    fusion = {**FUSION, **({"path": "runs/fusion/final"} if corrected else {})}
    tried: list[FusionModel] = []
    fused_orders = Recorder.fused_orders

    def recorded(self: Recorder, name: str, ranker: Any, settings: Any, *others: Any) -> Any:
        tried.extend(settings)
        return fused_orders(self, name, ranker, settings, *others)

    monkeypatch.setattr(Recorder, "fused_orders", recorded)
    tuned(fusion_settings(tmp_path, fakes, by_sparse_score, fusion=fusion))
    assert len(tried) > 20
    assert (min(each.sparse_weight for each in tried) > 0) == corrected


def test_weights_of_a_fusion_cost_no_forward_pass_and_are_not_computed_again(
    tmp_path: Path, fakes: dict[str, Ranker]
) -> None:
    """Of 20 texts each, the default encodes all, and so does the measurement of all other weights."""
    settings = fusion_settings(tmp_path, fakes, by_sparse_score)
    first = tuned(settings)
    encoder: Any = fakes["fused"]._encoder  # type: ignore[attr-defined]
    assert len(encoder.encoded) == 2 * 40 * (20 + 1)
    assert tuned(settings) == first
    assert len(encoder.encoded) == 2 * 40 * (20 + 1)


def test_serve_accepts_the_written_file(tmp_path: Path, fakes: Mapping[str, Ranker]) -> None:
    settings = settings_of(tmp_path, **lists(tmp_path, knows))
    flags = {"--requests": settings.requests, "--qrels": settings.qrels, "--config": settings.config}
    given = [str(word) for flag in flags.items() for word in flag]
    alone = CommandApp()
    add_to(alone)
    tuning = CliRunner().invoke(alone, [*given, "--only", "small", "--out", str(settings.out)])
    assert tuning.exit_code == 0, tuning.output
    check = CliRunner().invoke(app, ["serve", "--config", str(settings.out / "service.yaml"), "--check"])
    assert check.exit_code == 0, check.output
    assert "the settings can be used: 4 models" in check.output


def test_own_names_of_an_earlier_tuning_are_replaced(tmp_path: Path, fakes: dict[str, Ranker]) -> None:
    fakes["tuned"] = fakes["small"]
    settings = settings_of(tmp_path, **lists(tmp_path, knows))
    run_tuning(settings)
    again = replace(settings, config=settings.out / "service.yaml", only=["tuned"], out=tmp_path / "again")
    assert [model["name"] for model in tuned(again)["models"]] == ["tuned", "small", "whole", "identity"]


def test_killed_run_goes_on_where_it_was(tmp_path: Path, fakes: dict[str, Ranker]) -> None:
    """Two depths of 30 queries; it dies in the second one, and asks for that query again."""
    fakes["small"] = dying = DyingRanker(fails_at=40)
    settings = settings_of(tmp_path, **lists(tmp_path, knows), only=["small"])
    with pytest.raises(RankerFailure):
        run_tuning(settings)
    assert not (settings.out / "service.yaml").exists()
    written = tuned(settings)
    assert len(dying.ranked) == 60 + 1
    assert written == tuned(replace(settings, out=tmp_path / "undisturbed"))


def test_pointwise_model_reads_each_passage_once(tmp_path: Path, fakes: dict[str, Ranker]) -> None:
    fakes["small"] = pointwise = NumberRanker()
    pointwise.info = replace(pointwise.info, score_kind=ScoreKind.POINTWISE)
    run_tuning(settings_of(tmp_path, **lists(tmp_path, knows), only=["small"], rerank_depths="5,8,10"))
    assert [len(window.passages) for window in pointwise.ranked] == [10] * 30


def test_order_without_scores_is_not_interpolated(tmp_path: Path, fakes: dict[str, Ranker]) -> None:
    fakes["small"] = ranks = NumberRanker()
    ranks.info = replace(ranks.info, score_kind=ScoreKind.RANK)
    settings = settings_of(tmp_path, **lists(tmp_path, knows), only=["small"])
    assert tuned(settings)["models"][0]["interpolation"] == {"first_stage_weight": 0.0}


def test_too_few_queries_are_refused_with_both_numbers(tmp_path: Path, fakes: Mapping[str, Ranker]) -> None:
    settings = settings_of(tmp_path, **lists(tmp_path, knows, queries=19))
    with pytest.raises(CollectionError, match="You have 19 judged queries; at least 20 are needed: judge more"):
        run_tuning(settings)


def test_too_few_judgements_are_refused_before_the_lists_are_read(tmp_path: Path) -> None:
    qrels = write_qrels(tmp_path / "qrels.txt", {f"q{number}": {"d": number % 2} for number in range(30)})
    lists_of_another_form = write(tmp_path / "requests.jsonl", "no JSON")
    settings = settings_of(tmp_path, requests=lists_of_another_form, qrels=qrels)
    with pytest.raises(CollectionError, match="You have 15 judged queries with a relevant passage; at least 20 are"):
        run_tuning(settings)


def test_judgements_of_queries_that_are_not_asked_do_not_count(tmp_path: Path) -> None:
    given = lists(tmp_path, knows)
    asked = given["requests"].read_text(encoding="utf-8").splitlines()[:5]
    settings = settings_of(tmp_path, requests=write(tmp_path / "five.jsonl", *asked), qrels=given["qrels"])
    with pytest.raises(CollectionError, match="You have 5 judged queries; at least 20 are needed"):
        run_tuning(settings)


def test_queries_whose_relevant_passages_were_not_found_do_not_count(
    tmp_path: Path, fakes: Mapping[str, Ranker]
) -> None:
    settings = settings_of(tmp_path, **lists(tmp_path, knows), depth=3, rerank_depths="2,3")
    few = r"You have \d judged queries .* in the list of the first stage; at least 20 are needed.*--depth"
    with pytest.raises(CollectionError, match=few):
        run_tuning(settings)


def test_clicks_stand_for_judgements(tmp_path: Path, fakes: Mapping[str, Ranker]) -> None:
    given = lists(tmp_path, knows)
    clicks = [f"{q}\t{doc_id}\t{3 * grade}" for q, doc_id, grade in read_qrels(given["qrels"])]
    given = {"requests": given["requests"], "clicks": write(tmp_path / "clicks.tsv", *clicks)}
    assert tuned(settings_of(tmp_path, **given))["models"][0]["name"] == "tuned"


def test_query_without_candidates_counts_as_0(
    tmp_path: Path, fakes: Mapping[str, Ranker], capsys: pytest.CaptureFixture[str]
) -> None:
    given = lists(tmp_path, knows)
    first, *others = given["requests"].read_text(encoding="utf-8").splitlines()
    write(given["requests"], json.dumps({**json.loads(first), "candidates": []}), *others)
    run_tuning(settings_of(tmp_path, **given, rerank_depths="12", depth=12))
    assert "nDCG@10 is 0.967, and" in capsys.readouterr().out  # 29 of 30


def test_empty_list_has_no_order_by_any_weights(tmp_path: Path, fakes: dict[str, Ranker]) -> None:
    settings = fusion_settings(tmp_path, fakes, by_sparse_score)
    requests = settings.requests
    assert requests is not None
    first, *others = requests.read_text(encoding="utf-8").splitlines()
    write(requests, json.dumps({**json.loads(first), "candidates": []}), *others)
    assert tuned(settings)["models"][0]["sparse_weight"] == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "lists to rerank come from one of --index, --requests, but none of them is given"),
        ({"index": Path("i"), "requests": Path("r")}, "but --index and --requests are given; give exactly one"),
        ({"requests": Path("r")}, "judgements come from one of --qrels, --clicks, --collection, but none"),
        ({"index": Path("i"), "qrels": Path("q")}, "texts of queries come from one of --queries, --requests"),
        ({"requests": Path("r"), "clicks": Path("c"), "queries": Path("q")}, "--queries and --requests are given"),
        ({"rerank_depths": "1"}, "--rerank-depths 1: expected numbers from 2 to 100"),
        ({"rerank_depths": "10;20"}, "expected numbers from 2 to 100"),
        ({"rerank_depths": "10,101"}, "expected numbers from 2 to 100"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_tuning(TuneSettings(**given))
    assert message in str(caught.value)


def test_unknown_model_and_missing_index_are_refused(tmp_path: Path) -> None:
    given = lists(tmp_path, knows)
    with pytest.raises(ConfigError, match="--only larger: there is no such model to try; use fusion, pe-rank"):
        run_tuning(settings_of(tmp_path, **given, only=["larger"]))
    clicks = write(tmp_path / "clicks.tsv", *(f"query {number}\td1\t3" for number in range(20)))
    with pytest.raises(IndexMismatch):
        run_tuning(settings_of(tmp_path, clicks=clicks, index=tmp_path / "none"))
