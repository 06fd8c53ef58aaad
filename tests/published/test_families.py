"""Small folders in the layouts of published rerankers, given as a path alone, score as each model's own code does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = ("plain", "odd", "long query")
#: Names of the harness whose scores are the model's own.
SERVED = [
    *("minilm", "minilm_old", "bge_m3", "bge_large", "mxbai_v1", "gte_mb", "granite", "ettin", "electra1", "qwen3_old"),
    *("qwen3_new", "qwen3_seqcls", "mxbai_v2_old", "mxbai_v2_new", "zerank2", "zerank1", "ctxl"),
    *("bge_gemma", "gte_native"),
]
#: Names that are served, and of which the harness has no other way; tests/rerank has one.
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
def test_folder_alone_is_served_as_its_model_means_it(shared, tmp_path):
    harness = shared.parent / "tools" / "families"
    paths = {"PROJECT": str(ROOT), "PYTHONPATH": f"{ROOT}:{harness}", "CHECKPOINTS": str(tmp_path)}
    command = [sys.executable, str(Path(__file__).with_name("family_scores.py")), *SERVED, *READ, *REFUSED]
    program = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=True)
    found = {row.pop("name"): row for row in map(json.loads, program.stdout.splitlines())}
    differing = {
        name: row for name in SERVED if "refused" in (row := found[name]) or max(row[label] for label in LISTS) > 1e-5
    }
    assert differing == {}
    assert {name: found[name] for name in READ if "plain" not in found[name]} == {}
    others = {name: found[name] for name, words in REFUSED.items() if not re.search(words, found[name]["refused"])}
    assert others == {}
