"""Small folders in the layouts of published rerankers, given as a path alone, score as each model's own code does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Names of the harness whose scores are the model's own.
SERVED = [
    "minilm",
    "minilm_old",
    "bge_m3",
    "bge_large",
    "mxbai_v1",
    "gte_mb",
    "granite",
    "ettin",
    "electra1",
    "zerank2",
    "zerank1",
    "ctxl",
    "gte_native",
]
#: Names that are served, and of which the harness has no other way.
READ = ["nv", "gte_remote", "monot5", "colbert", "pylate"]
#: Names that are refused, with the way out.
REFUSED = {
    "electra2": "id2label",
    "bge_layerwise": "bge-reranker-v2-minicpm-layerwise .*(FlagOpen/FlagEmbedding|has 1 heads)",
    "bge_light": "bge-reranker-v2.5-gemma2-lightweight.*BAAI/bge-reranker-v2-m3",
    "jina_m0": "jina-reranker-m0, which reads images; run it by vLLM",
    "lit5": "encoder-decoder; write mono-t5:",
    "setenc": "Set-Encoder of lightning-ir",
    "webis": "cross-encoder of lightning-ir",
}


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_folder_alone_is_served_as_its_model_means_it(shared: Path, tmp_path: Path) -> None:
    names = [*SERVED, *READ, *REFUSED]
    paths = {"PROJECT": str(ROOT), "PYTHONPATH": str(ROOT), "CHECKPOINTS": str(tmp_path)}
    command = [sys.executable, str(shared.parent / "tools" / "families" / "run.py"), *names]
    run = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=True)
    parts = re.split(r"^## (\w+): Reranker\('(.*)'\)$", run.stdout, flags=re.MULTILINE)[1:]
    alone = {name: text for name, given, text in zip(*[iter(parts)] * 3, strict=True) if given.startswith("/")}
    assert alone.keys() == {*names}
    for name in SERVED:
        found = dict(re.findall(r"(plain|odd): maxdiff (\S+)", alone[name]))
        # zerank strips texts, and the harness does not
        assert float(found["plain"]) < 1e-5, name
        assert float(found["odd"]) < (1e-3 if name == "zerank1" else 1e-5), name
    assert [name for name in READ if "plain: got [" not in alone[name]] == []
    assert [name for name, words in REFUSED.items() if not re.search(f"REFUSED .*{words}", alone[name])] == []
