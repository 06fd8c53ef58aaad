"""Published layouts by their names, from a hub on this machine that the real huggingface_hub asks."""

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerank.checkpoints import hub as module
from tests.hub_server import use_hub
from tests.json_files import change_json
from tests.serving import free_port

pytestmark = [pytest.mark.shared, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
ENCODER = "jinaai/jina-embeddings-v2-base-en"
#: Name on the hub → folder of its tiny checkpoint in reference/parity/fixtures.
MODELS = {
    "castorini/first_mistral": "first_mistral",
    "castorini/rank_zephyr_7b_v1_full": "zephyr-gen",
    "liuqi6777/pe-rank-mistral-jina": "pe-rank-mistral-jina",
    ENCODER: "jina-embeddings-v2-base-en",
    "Alibaba-NLP/E2Rank-0.6B": "E2Rank-0.6B",
}
#: Name on the hub → name of the harness of families, and the folder that it writes: one that is read by its profile,
#: one by its files, one by a class of ours.
FAMILIES = {
    "Qwen/Qwen3-Reranker-0.6B": ("qwen3_old", "qwen3-reranker-old"),
    "answerdotai/answerai-colbert-small-v1": ("colbert", "answerai-colbert-small-v1"),
    "nvidia/llama-nemotron-rerank-1b-v2": ("nv", "llama-nemotron-rerank-1b-v2"),
}
MODELS |= {name: folder for name, (_, folder) in FAMILIES.items()}
#: Writes the folders, and the words of Qwen3-Reranker's prompt into its card, where its publisher has them.
BUILD = """
import sys, build
for name in sys.argv[1:]:
    build.ALL[name]()
words = f"<|im_start|>system\\n{build.QSYS}<|im_end|>\\n<|im_start|>user\\n", build.QTASK
(build.CK / "qwen3-reranker-old" / "README.md").write_text(f"```python\\nwords = {words!r}\\n```\\n")
"""
#: Profile → a prompt, as neither the package rank-llm nor the publisher's repository may be at hand.
TEMPLATES = {
    "first-mistral": "first-own/template.yaml",
    "rank-zephyr": "first-own/template.yaml",
    "pe-rank-mistral-jina": "pe-ours/template.yaml",
}


@pytest.fixture(scope="module")
def fixtures(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints, of which PE-Rank's names its encoder as the published one does."""
    folder = tmp_path_factory.mktemp("published") / "fixtures"
    shutil.copytree(shared.parent / "reference" / "parity" / "fixtures", folder)
    change_json(folder / "pe-rank-mistral-jina" / "config.json", encoder_name=ENCODER)
    paths = {"PYTHONPATH": f"{ROOT}:{shared.parent / 'tools' / 'families'}", "CHECKPOINTS": str(folder)}
    command = [sys.executable, "-c", BUILD, *(name for name, _ in FAMILIES.values())]
    subprocess.run(command, env={**os.environ, "PROJECT": str(ROOT), **paths}, check=True)
    return folder


@pytest.fixture(scope="module")
def hub(shared: Path, fixtures: Path) -> Iterator[str]:
    """The URL of a hub that serves the checkpoints."""
    port = free_port()
    models = [f"{name}={fixtures / folder}" for name, folder in MODELS.items()]
    command = [sys.executable, str(shared.parent / "tools" / "hub.py"), str(port), *models]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/api/models/{ENCODER}").close()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def test_check_passes_on_a_machine_without_a_checkpoint_and_again_offline(hub, tmp_path):
    (tmp_path / "service.yaml").write_text("models: [{name: default, path: Alibaba-NLP/E2Rank-0.6B}]")
    command = [sys.executable, "-m", "rerank.commands.cli", "serve", "--check", "--config", "service.yaml"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    variables |= {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home")}
    for offline, expected in ({}, "downloading 2."), ({"HF_HUB_OFFLINE": "1"}, "from the cache"):
        environment = variables | offline
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Alibaba-NLP/E2Rank-0.6B: commit " in done.stderr
        assert expected in done.stderr


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("castorini/first_mistral", "first-mistral"),
        ("castorini/rank_zephyr_7b_v1_full", "rank-zephyr"),
        ("liuqi6777/pe-rank-mistral-jina", "pe-rank-mistral-jina"),
        ("Alibaba-NLP/E2Rank-0.6B", "e2rank"),
        ("Qwen/Qwen3-Reranker-0.6B", "qwen3-reranker"),
        ("answerdotai/answerai-colbert-small-v1", "late-interaction"),
        ("nvidia/llama-nemotron-rerank-1b-v2", "nemotron-rerank"),
    ],
)
def test_name_ranks_as_its_folder_does(hub, fixtures, tmp_path, monkeypatch, name, profile):
    from rerank import Reranker, load_config
    from rerank.config.named import named_model

    use_hub(hub, tmp_path / "cache", monkeypatch)
    module._list_files.cache_clear()
    template = {"template": str(fixtures / TEMPLATES[profile])} if profile in TEMPLATES else {}
    of_folder = {"encoder": str(fixtures / MODELS[ENCODER])} if profile == "pe-rank-mistral-jina" else {}
    configs = [
        load_config(None, models=[named_model(name) | template]),
        load_config(None, models=[named_model(f"default={profile}:{fixtures / MODELS[name]}") | template], **of_folder),
    ]
    rankings = []
    for config in configs:
        with Reranker(config) as reranker:
            (model,) = reranker.models()
            assert model.problem == ""
            ranked = reranker.rank("how long does a flea live", ["Deserts are dry.", "A flea lives a year.", "Tides"])
            rankings.append((ranked, model.info.model_id))
    (by_name, model_id), (by_folder, _) = rankings
    assert by_name == by_folder
    assert model_id == name
