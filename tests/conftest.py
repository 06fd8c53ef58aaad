"""Fixtures that several test files share, and the options that turn expensive tests on.

Fixtures import torch and what is built on it, so that a run of tests that need no model starts at once and works
where torch is not installed (see tests/without_torch.py).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import hypothesis
import pytest

from rerank.collections import open_collection
from rerank.rankers.identity import IdentityRanker
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder
    from rerank.models.sparse_encoder import SparseEncoder
    from rerank.retrieval.index import Index
    from tests.serving import Served

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub reads it: no test asks the hub
hypothesis.settings.register_profile("any machine", deadline=None, max_examples=50)  # no example has to be quick
hypothesis.settings.load_profile("any machine")

#: doc_id → (title, text)
PASSAGES = {
    "flea": ("Fleas", "The life cycle of a flea lasts from 20 days to a whole year."),
    "flea-bite": ("Flea bites", "Bites of fleas itch and turn red; cats and dogs suffer most."),
    "moon": ("The moon", "The moon orbits the earth in about 27 days and causes the tides."),
    "tides": ("Tides", "High and low water follow the pull of the moon and of the sun."),
    "sourdough": ("Sourdough", "Flour and water ferment for days before the bread is baked."),
    "baker": ("Bakers", "A baker kneads the dough in the night and bakes it before dawn."),
    "lucene": ("Lucene", "A library that searches text with inverted indexes and BM25."),
    "faiss": ("FAISS", "A library that searches dense vectors by inner product."),
    "violin": ("Violins", "Four strings, a bow and a body of spruce and maple."),
    "cello": ("Cellos", "Tuned an octave below the viola and played between the knees."),
    "glacier": ("Glaciers", "Ice that flows downhill under its own weight, slowly."),
    "desert": ("Deserts", "Little rain, hot days, cold nights, and sand that wanders."),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shared", type=Path, help="folder with data/ for the tests marked 'shared'")
    parser.addoption(
        "--vllm", help="URL of the vLLM server that tests/rerank/inference_servers/test_real_vllm.py describes"
    )
    parser.addoption("--vllm-models", type=Path, help="folder of the models of test_real_rerank_api.py")
    parser.addoption("--vllm-command", help="command that starts that server again, for the test that kills it")
    parser.addoption("--public-tokenizers", type=Path, help="folder with the packages of test_public_tokenizers.py")
    parser.addoption("--sdk", type=Path, help="folder of the environments for the tests marked 'sdk'")
    parser.addoption("--sdk-table", type=Path, help="Markdown file whose table of clients the tests marked 'sdk' write")
    parser.addoption("--image", action="store_true", help="run the tests marked 'image', which install the package")
    parser.addoption("--ray", action="store_true", help="run the tests marked 'ray', which start Ray on this machine")
    parser.addoption("--browser", type=Path, help="program of Chromium for the tests marked 'browser'")


#: Marker → why its tests are skipped without the option of the same name.
NEEDS = {
    "sdk": "runs clients of others; `make sdk-tests` installs and runs them",
    "image": "installs the package, 2 GB; `make image-tests` runs it",
    "ray": "starts Ray on this machine; `make ray-tests` runs it",
    "browser": "drives a browser; `make browser-tests` runs it",
    "public_tokenizers": "needs --public-tokenizers DIR, filled by: pip install --no-deps --target DIR mistral-common "
    "dashscope llama-models rank-llm==0.25.7",
    "vllm": "needs a vLLM server; give it with --vllm URL",
    "shared": "measures on data outside the repository; give it with --shared DIR",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # pytest-xdist hands out files in this order: the slow ones first, so that none keeps one process busy at the end.
    slow_files = {item.path for item in items if "slow" in item.keywords}
    items.sort(key=lambda item: item.path not in slow_files)
    for item in items:
        if "gpu" in item.keywords and not cuda_is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, torch sees none"))
        for marker, reason in NEEDS.items():
            if marker in item.keywords and not config.getoption(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def cuda_is_available() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undoes what a command run in this process sets up: its log would go to the closed stream of another test."""
    root, names = logging.getLogger(), ("", "rerank", "rerank_eval", "rerank_training")
    handlers, levels = root.handlers.copy(), [logging.getLogger(name).level for name in names]
    yield
    root.handlers[:] = handlers
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two torch threads, also where `make test` gives each process one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Path:
    """The folder given with --shared."""
    folder: Path = request.config.getoption("--shared")
    return folder / "data"


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    from tests.serving import shared_encoder

    return shared_encoder()


@pytest.fixture(scope="session")
def checkpoint(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zero-init PE-Rank checkpoint of `encoder`."""
    from rerank.models.projector import write_zero_init_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints") / "zero-init"
    write_zero_init_checkpoint(encoder, folder)
    return folder


@pytest.fixture(scope="session")
def beir_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PASSAGES in BEIR layout."""
    folder = tmp_path_factory.mktemp("beir") / "twelve"
    folder.mkdir()
    rows = [{"_id": doc_id, "title": title, "text": text} for doc_id, (title, text) in PASSAGES.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def index_folder(beir_folder: Path, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rerank.retrieval.build import build_index

    out = tmp_path_factory.mktemp("indexes") / "twelve"
    build_index(open_collection(str(beir_folder)), out, encoder)
    return out


@pytest.fixture(scope="session")
def index(index_folder: Path, encoder: Encoder) -> Index:
    from rerank.retrieval.index import Index

    return Index(index_folder, encoder)


@pytest.fixture(scope="session")
def sparse_encoder() -> SparseEncoder:
    from rerank.models.sparse_encoder import SparseEncoder

    return SparseEncoder(device="cpu")


@pytest.fixture(scope="session")
def service(checkpoint: Path, encoder: Encoder, index: Index) -> Iterator[Served]:
    """A service over `index` with the models pe-rank (the default), identity and number."""
    from rerank.rankers.pe_rank import PERankRanker
    from tests.serving import running_service

    rankers = {
        "pe-rank": PERankRanker(checkpoint, encoder, "cpu"),
        "identity": IdentityRanker(),
        "number": NumberRanker(),
    }
    with running_service(rankers, index) as served:
        yield served


@pytest.fixture(scope="session")
def channel(service: Served) -> grpc.Channel:
    return service.channel


@pytest.fixture(scope="session")
def stub(channel: grpc.Channel) -> RerankServiceStub:
    return RerankServiceStub(channel)
