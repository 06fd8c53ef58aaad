"""The recipes of CONTRIBUTING.md for a ranker and for an inference server, followed on a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RANKER = """
from rerank.rankers.identity import IdentityRanker
from rerank.types import WindowRanking


class ReverseRanker(IdentityRanker):
    def rank(self, windows):
        return [WindowRanking(tuple(map(float, range(len(each.window.passages))))) for each in windows]
"""
SETTINGS = '''
class ReverseModel(CheckpointModel):
    """Settings of a model that reverses the order."""

    ranker: Literal["reverse"]


'''
SERVER = """
from rerank.inference_servers.vllm import VllmApi


class OtherApi(VllmApi):
    offers_top_k = False
"""
PROGRAM = """
from rerank.config import load_config, ServedBy
from rerank.inference_servers.kinds import APIS
from rerank.rankers.base import rank_windows
from rerank.registry import load_models
from rerank.types import Passage, Query, Window

config = load_config(None, models=[{"name": "mine", "ranker": "reverse", "window_size": 5}])
ranker = load_models(config.models, None, "cpu").rankers["mine"]
print(rank_windows(ranker, [Window(Query("q"), tuple(Passage(name, "") for name in "abc"))])[0].permutation)
served = ServedBy(kind="other", urls=("http://gpu1:8000",), model="m")
print(APIS[served.kind](served.model, served.allow_top_k).generate((1, 2), 3).body["prompt"])
"""


def edit(path: Path, before: str, added: str) -> None:
    """Adds a text before another one, which is there once."""
    content = path.read_text(encoding="utf-8")
    assert content.count(before) == 1, f"{path}: {before!r} is there {content.count(before)} times"
    path.write_text(content.replace(before, added + before), encoding="utf-8")


@pytest.mark.slow
def test_ranker_and_inference_server_need_the_files_that_their_recipes_name(tmp_path: Path) -> None:
    """Each one of its own, and a line or a few in those with the registers; the model needs no files."""
    copy = tmp_path / "rerank"
    shutil.copytree(ROOT / "rerank", copy, ignore=shutil.ignore_patterns("checkpoints", "__pycache__"))
    (copy / "checkpoints").symlink_to(ROOT / "rerank" / "checkpoints")
    (copy / "rankers" / "reverse.py").write_text(RANKER, encoding="utf-8")
    edit(copy / "config" / "models.py", "ModelConfig: TypeAlias", SETTINGS)
    edit(copy / "config" / "models.py", "IdentityModel | PERankModel | FirstModel", "ReverseModel | ")
    case = 'case _ if model.ranker == "reverse":\n            from rerank.rankers.reverse import ReverseRanker\n\n'
    edit(copy / "registry.py", "case IdentityModel():", f"{case}            return ReverseRanker()\n        ")
    (copy / "inference_servers" / "other.py").write_text(SERVER, encoding="utf-8")
    edit(copy / "inference_servers" / "kinds.py", "\nAPIS", "from rerank.inference_servers.other import OtherApi\n")
    edit(copy / "inference_servers" / "kinds.py", '"vllm": VllmApi', '"other": OtherApi, ')
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "(2, 1, 0)\n[1, 2]\n"), done.stderr
