"""The recipes of docs/development/recipes.md are true: each is followed on a copy of the tree.

All are followed on one copy, in which one process then uses what they added.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "development" / "recipes.md"
FOLDERS = ("rerank", "eval/rerank_eval", "training/rerank_training", "proto/rerank")


@dataclass(frozen=True)
class Recipe:
    """What a recipe adds, and a program that uses it.

    Attributes:
        heading: of the recipe on the page.
        new: path → content of each file that is added.
        edits: path → texts of the file, each followed by what stands there instead.
        use: a program that raises if what was added does not work.
    """

    heading: str
    new: dict[str, str]
    edits: dict[str, tuple[str, ...]]
    use: str


RECIPES = {
    "ranker": Recipe(
        "Add a ranker",
        {
            "rerank/rankers/reverse.py": """
from dataclasses import replace
from rerank.rankers.identity import IdentityRanker
from rerank.types import WindowRanking

class ReverseRanker(IdentityRanker):
    info = replace(IdentityRanker.info, kind="reverse", model_id="reverse")

    def ranking(self, window, results):
        return WindowRanking(tuple(float(n) for n in range(len(window.passages))))
"""
        },
        {
            "rerank/config/models.py": (
                "ModelConfig: TypeAlias = Annotated[\n    IdentityModel",
                'class ReverseModel(CheckpointModel):\n    """Reversed."""\n\n    ranker: Literal["reverse"]\n\n\n'
                "ModelConfig: TypeAlias = Annotated[\n    ReverseModel | IdentityModel",
            ),
            "rerank/reranking/load_models.py": (
                "        case IdentityModel():\n            return IdentityRanker()\n",
                "        case IdentityModel():\n            return IdentityRanker()\n"
                "        case _ if model.ranker == 'reverse':\n"
                "            from rerank.rankers.reverse import ReverseRanker\n            return ReverseRanker()\n",
            ),
        },
        """
from rerank import (Reranker)
from rerank.config import load_config
config = load_config(None, [{"name": "r", "ranker": "reverse"}])
with Reranker(config.model_copy(update={"models": config.models[:1]})) as reranker:
    ranking = reranker.rerank("q", [("a", "x"), ("b", "y"), ("c", "z")])
assert [result.passage.doc_id for result in ranking.ranked] == ["c", "b", "a"], ranking
""",
    ),
    "inference server": Recipe(
        "Add an inference server",
        {
            "rerank/inference_servers/mine.py": """
from rerank.inference_servers.vllm import VllmApi

class MineApi(VllmApi):
    most_token_ids = 7
"""
        },
        {
            "rerank/inference_servers/kinds.py": (
                "APIS: dict[str, type[ServerApi]] = {",
                "from rerank.inference_servers.mine import MineApi\n"
                'APIS: dict[str, type[ServerApi]] = {"mine": MineApi, ',
            )
        },
        """
from rerank.config import ServedBy
from rerank.inference_servers.kinds import APIS
assert ServedBy(kind="mine", url="http://localhost:1", model="m").kind == "mine"
assert APIS["mine"]("m").score([1, 2], [3]).body["logprob_token_ids"] == [3]
""",
    ),
    "strategy": Recipe(
        "Add a strategy",
        {},
        {
            "rerank/engine/strategies.py": (
                "        case StrategyKind.SINGLE | StrategyKind.CASCADE:\n",
                "        case StrategyKind.BACKWARDS:\n"
                "            class Backwards(Single):\n"
                "                def schedule(self, candidates: Sequence[int]) -> Schedule:\n"
                "                    return _last_window(candidates[::-1], [])\n\n"
                "            return Backwards(window_size)\n"
                "        case StrategyKind.SINGLE | StrategyKind.CASCADE:\n",
            ),
            "rerank/names.py": (
                '    TOP_DOWN = "top-down"\n',
                '    TOP_DOWN = "top-down"\n    BACKWARDS = "backwards"\n',
            ),
            "proto/rerank/v1/rerank.proto": (
                "  STRATEGY_KIND_TOP_DOWN = 3;\n",
                "  STRATEGY_KIND_TOP_DOWN = 3;\n  STRATEGY_KIND_BACKWARDS = 99;\n",
            ),
        },
        """
from rerank import (RankOptions, Reranker)
with Reranker("identity") as reranker:
    ranking = reranker.rerank("q", [("a", "x"), ("b", "y")], RankOptions(strategy="backwards"))
assert [result.passage.doc_id for result in ranking.ranked] == ["b", "a"], ranking
from rerank.client.client import rerank_request
from rerank.config import Limits
from rerank.protobuf import requests
message = rerank_request("q", [("a", "x")], {"strategy": "backwards"})
assert requests.rerank_request(message).checked(Limits()).options.strategy == "backwards"
""",
    ),
    "step of the reranker": Recipe(
        "Add a step of the reranker",
        {
            "rerank/reranking/short_results.py": """
from dataclasses import replace

async def short_results(request, ranking):
    ranked = tuple(result for result in ranking.ranked if len(result.passage.text) < 9)
    return replace(ranking, ranked=ranked)
"""
        },
        {
            "rerank/reranking/steps.py": (
                "        self.choosing = (",
                "        from rerank.reranking.short_results import short_results\n\n"
                "        self.choosing = (short_results, ",
            )
        },
        """
from rerank import (Reranker)
with Reranker("identity") as reranker:
    ranking = reranker.rerank("q", [("a", "a long text"), ("b", "short"), ("c", "brief")])
assert [result.passage.doc_id for result in ranking.ranked] == ["b", "c"], ranking
""",
    ),
    "HTTP dialect": Recipe(
        "Add an HTTP dialect",
        {},
        {
            "rerank/ports/http/dialects/forms.py": (
                "class WeaviateRequest(Options):",
                "class LinesRequest(Options):\n    question: str\n    lines: Texts\n\n\n"
                'LINES = Form(name="lines", passages_field="lines", request=LinesRequest, query="question", '
                'result={"place": Slot.INDEX, "points": Slot.SCORE}, envelope={"best": Slot.RESULTS})\n\n\n'
                "class WeaviateRequest(Options):",
            ),
            "rerank/ports/http/dialects/table.py": (
                '    return {\n        "/v1/rerank"',
                "    from rerank.ports.http.dialects.forms import LINES\n\n"
                '    return {\n        "/lines": {"lines": LINES},\n        "/v1/rerank"',
            ),
        },
        """
import json
from rerank import (Reranker)
from rerank.ports.http.dialects.table import dialects
from rerank.ports.http.openapi import openapi
of_path = dialects(lambda texts, tokens: texts)
translated = of_path["/lines"]["lines"].translate({"question": "q", "lines": ["a", "b"]})
(request,) = translated.requests
assert request.query.text == "q"
texts = [candidate.text for candidate in request.candidates]
assert texts == ["a", "b"]
with Reranker("identity") as reranker:
    reply = json.loads(translated.reply(reranker.rerank("q", texts), []))
assert [result["place"] for result in reply["best"]] == [0, 1], reply
document = openapi(of_path)
assert "/lines" in document["paths"]
assert document["components"]["schemas"]["LinesResult"]["properties"].keys() == {"place", "points"}
""",
    ),
    "loss": Recipe(
        "Add a loss",
        {},
        {
            "training/rerank_training/trainer/losses.py": (
                "\n_LOSSES = (",
                '\ndef mean_score(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:\n    """Mean."""\n'
                "    return scores[mask].mean()\n\n\n_LOSSES = (mean_score, ",
            )
        },
        """
import torch
from rerank_training.trainer.losses import RANK_LOSSES, rank_loss_named
scores, mask = torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True]])
assert RANK_LOSSES["mean-score"](scores, scores, mask).item() == 2
assert rank_loss_named("mean-score") is RANK_LOSSES["mean-score"]
""",
    ),
    "signal of the fusion": Recipe(
        "Add a signal of the fusion",
        {},
        {
            "rerank/config/models.py": (
                "    sparse_weight: Weight = 0.5\n",
                "    sparse_weight: Weight = 0.5\n    overlap_weight: Weight = 0.0\n",
            ),
            "rerank/rankers/fused_scores.py": (
                "    sparse: Floats | None\n",
                "    sparse: Floats | None\n    overlap: Floats | None = None\n",
                "    scores = first_stage_weight * z_scores(signals.first_stage)\n",
                "    scores = first_stage_weight * z_scores(signals.first_stage)\n"
                "    if signals.overlap is not None:\n"
                "        scores += settings.overlap_weight * z_scores(signals.overlap)\n",
            ),
            "rerank/rankers/fusion.py": (
                "        return CheapSignals(first_stage, sparse)\n",
                "        query = set(window.query.text.split())\n"
                "        texts = [set(passage.text.split()) for passage in window.passages]\n"
                "        overlap = np.array([float(len(query & text)) for text in texts])\n"
                "        return CheapSignals(first_stage, sparse, overlap)\n",
            ),
        },
        """
from rerank import (Reranker)
from rerank.config import load_config
fusion = {"name": "f", "ranker": "fusion", "sparse_weight": 0.0, "overlap_weight": 100.0}
config = load_config(None, [fusion])
with Reranker(config.model_copy(update={"models": config.models[:1]})) as reranker:
    ranking = reranker.rerank("a b c", [("one", "a x y"), ("three", "a b c"), ("two", "a b x")])
assert [result.passage.doc_id for result in ranking.ranked] == ["three", "two", "one"], ranking
""",
    ),
    "dataset": Recipe(
        "Add a dataset",
        {
            "rerank/collections/colours.py": """
from rerank.readers.qrels import Qrel
from rerank.types import (Passage, Query)

def passages():
    yield Passage("sky", "the sky is blue")

def queries():
    return [Query("colour of the sky", "q1")]

def qrels(split):
    return [Qrel("q1", "sky", 1)]
"""
        },
        {
            "rerank/collections/__init__.py": (
                'NAMED: dict[str, Callable[[], Collection]] = {"pydoc": _pydoc}',
                "from rerank.collections import colours\n"
                'NAMED: dict[str, Callable[[], Collection]] = {"pydoc": _pydoc, "colours": lambda: Collection(\n'
                '    "colours", colours.passages, queries=colours.queries, qrels=colours.qrels)}',
            )
        },
        """
from rerank.collections import open_collection
from rerank_eval.datasets import open_dataset
assert [passage.doc_id for passage in open_collection("colours").passages()] == ["sky"]
dataset = open_dataset("colours")
assert [(qrel.query_id, qrel.doc_id) for qrel in dataset.qrels] == [("q1", "sky")], dataset
""",
    ),
}


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Recipe → the traceback of its program on a copy of the tree; empty if it ended well."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "checkpoints"))
    (tree / "rerank" / "checkpoints").symlink_to(ROOT / "rerank" / "checkpoints")
    for recipe in RECIPES.values():
        for path, text in recipe.new.items():
            (tree / path).write_text("from __future__ import annotations\n" + text, encoding="utf-8")
        for path, texts in recipe.edits.items():
            for old, new in zip(texts[::2], texts[1::2], strict=True):
                source = (tree / path).read_text(encoding="utf-8")
                assert source.count(old) == 1, f"{path}: {old!r}"
                (tree / path).write_text(source.replace(old, new), encoding="utf-8")
    shutil.copytree(ROOT / "scripts", tree / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    make_proto = ["bash", "scripts/gen_proto.sh"]
    subprocess.run(make_proto, env={**os.environ, "PYTHON": sys.executable}, cwd=tree, check=True)
    program = f"""
import json, traceback
import rerank
assert rerank.__file__.startswith({str(tree)!r}), rerank.__file__
problems = {{}}
for name, use in { ({name: recipe.use for name, recipe in RECIPES.items()})!r}.items():
    try:
        exec(use, {{}})
        problems[name] = ""
    except BaseException:
        problems[name] = traceback.format_exc()
print(json.dumps(problems))
"""
    paths = os.pathsep.join(str((tree / folder).parent) for folder in FOLDERS)
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        cwd=tree,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_adds_works(problems: dict[str, str], name: str) -> None:
    assert not problems[name]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_names_the_files_that_it_touches(name: str) -> None:
    recipe = RECIPES[name]
    section = PAGE.read_text(encoding="utf-8").partition(f"## {recipe.heading}\n")[2]
    steps = [line for line in section.partition("\n## ")[0].splitlines() if re.match(r"\d\. ", line)]
    files = [re.search(r"\]\(([\w./-]+)\)|`([\w./-]+\.py)`", step) for step in steps]
    named = [os.path.relpath(PAGE.parent / match[1], ROOT) if match[1] else match[2] for match in files if match]
    product = [path for path in named if not path.startswith("tests/")]
    assert len(named) == len(steps)
    touched = {
        path if path in recipe.edits else f"{Path(path).parent}/NAME.py" for path in (*recipe.new, *recipe.edits)
    }
    assert touched == set(product)
