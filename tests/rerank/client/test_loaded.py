"""The hash of a model that is loaded on request is known to those who write it next to their results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rerank_eval.settings import EvaluationSettings
from rerank_eval.systems import open_systems, parse_systems

from rerank.client import RerankClient, ServiceError
from rerank.client.loaded import list_loaded_models
from rerank.commands.rank import RankSettings, rank
from rerank.config import FirstModel, IdentityModel, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.reranking.load_models import ModelLoader, load_models
from rerank.reranking.reranker import AsyncReranker
from tests.causal_lms import write_causal_lm
from tests.serving import TIMEOUT_S, serving
from tests.small_tokenizers import byte_level


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "qwen3", byte_level())


def reranker_with(encoder: Encoder, path: Path) -> AsyncReranker:
    """A service whose model "first" is loaded on request."""
    models = (
        IdentityModel(name="identity", ranker="identity"),
        FirstModel(name="first", ranker="first", path=path, load="request"),
    )
    config = ServiceConfig(models=models, listen="127.0.0.1:0", device="cpu")
    loader = ModelLoader(encoder, "cpu")
    return AsyncReranker(config, encoder, None, load_models(models, loader), loader)


def test_only_the_named_models_are_loaded(encoder: Encoder, lm: Path) -> None:
    with serving(reranker_with(encoder, lm)) as served, RerankClient(served.address) as client:
        for names, is_loaded in (((), False), (("", "identity", "missing"), False), (("first",), True)):
            first = list_loaded_models(client, names, TIMEOUT_S).models[1]
            assert (first.is_loaded, len(first.model_revision)) == (is_loaded, 64 * is_loaded)


def test_model_that_cannot_be_loaded_is_an_error(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with (
        serving(reranker_with(encoder, tmp_path)) as served,
        RerankClient(served.address) as client,
        pytest.raises(ServiceError, match="model 'first' is not served"),
    ):
        list_loaded_models(client, ["first"], TIMEOUT_S)


def test_evaluations_and_ranked_files_name_the_hash(encoder: Encoder, lm: Path, tmp_path: Path) -> None:
    requests, out = tmp_path / "requests.jsonl", tmp_path / "ranked.jsonl"
    candidates = [{"docid": "a", "score": 1.0, "doc": {"contents": "a"}}]
    requests.write_text(json.dumps({"query": {"qid": "q", "text": "q"}, "candidates": candidates}))
    with serving(reranker_with(encoder, lm)) as served:
        settings = EvaluationSettings(out=tmp_path, target=served.address)
        with open_systems(parse_systems(["mine=first"]), settings) as systems:
            revision = str(systems["mine"].fingerprint["model_revision"])
    with serving(reranker_with(encoder, lm)) as served:
        rank(RankSettings(batch=requests, out=out, model="first", target=served.address))
    assert json.loads(out.read_text())["settings"]["model_revision"] == revision
    assert len(revision) == 64
