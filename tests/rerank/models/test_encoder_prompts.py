"""Prompts of encoders: vectors of queries and of passages equal sentence-transformers'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from rerank.config import EncoderConfig, FusionModel
from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.rankers.fusion import FusionRanker
from rerank.retrieval.dense import query_vectors
from rerank.types import Passage, Query, Window
from tests.small_encoder import change_json, state_prompts, write_qwen_encoder, write_small_encoder

TEXTS = ["a flea", "Robins sense the magnetic field of the earth.", "word " * 90]  # of different lengths; one too long
QUERY, DOCUMENT = "Instruct: find what answers\nQuery:", "title: none | text: "

PROMPTS: Mapping[str, dict[str, object]] = {
    "both": {"query": QUERY, "document": DOCUMENT},
    "query": {"query": QUERY, "document": ""},
    "document": {"document": DOCUMENT, "classification": "classify: "},
    "none": {},
}


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an encoder with this pooling, and with padding on this side."""
    side, pooling = request.param.split() if " " in request.param else ("", request.param)
    out = tmp_path_factory.mktemp("encoders") / "encoder"
    if side:
        return write_qwen_encoder(out, side, pooling)
    write_small_encoder(out, encoder)
    change_json(out / "1_Pooling" / "config.json", pooling_mode_mean_tokens=pooling == "mean")
    change_json(out / "1_Pooling" / "config.json", pooling_mode_cls_token=pooling == "cls")
    change_json(out / "sentence_bert_config.json", max_seq_length=64)
    return out


@pytest.mark.parametrize(
    ("folder", "stated"),
    [("mean", "query"), ("mean", "document"), ("mean", "none")]
    + [(pooling, "both") for pooling in ("mean", "cls", "left lasttoken", "right lasttoken")],
    indirect=["folder"],
)
def test_vectors_are_those_of_sentence_transformers(folder: Path, stated: str) -> None:
    state_prompts(folder, PROMPTS[stated])
    encoder, library = Encoder(str(folder), "cpu"), SentenceTransformer(str(folder), device="cpu")
    queries, passages = encoder.encode_queries(TEXTS), encoder.encode_passages(TEXTS)
    np.testing.assert_allclose(queries, library.encode_query(TEXTS, normalize_embeddings=True), atol=1e-5)
    np.testing.assert_allclose(passages, library.encode_document(TEXTS, normalize_embeddings=True), atol=1e-5)
    assert np.allclose(queries, passages, atol=1e-3) == (stated == "none")


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return write_qwen_encoder(tmp_path / "encoder")


def test_passage_stands_for_document(qwen: Path) -> None:
    """encode_document of sentence-transformers 6.2 takes no prompt of such a folder."""
    state_prompts(qwen, {"query": "query: ", "passage": "passage: "})
    expected = SentenceTransformer(str(qwen), device="cpu").encode(
        TEXTS, prompt_name="passage", normalize_embeddings=True
    )
    np.testing.assert_allclose(Encoder(str(qwen), "cpu").encode_passages(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("stated", ["none", "both"])
def test_settings_give_prompts_where_the_folder_states_none_and_replace_others(qwen: Path, stated: str) -> None:
    state_prompts(qwen, PROMPTS[stated])
    settings = EncoderConfig.of(f"{{name: {qwen}, query_prompt: 'query: ', document_prompt: ''}}")
    encoder, library = Encoder(settings, "cpu"), SentenceTransformer(str(qwen), device="cpu")
    expected = library.encode(TEXTS, prompt="query: ", normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-5)
    expected = library.encode(TEXTS, prompt="", normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("in_chat", [False, True])
def test_token_limit_counts_the_prompt(tmp_path: Path, in_chat: bool) -> None:
    folder = write_qwen_encoder(tmp_path / "encoder", in_chat=in_chat)
    change_json(folder / "tokenizer_config.json", model_max_length=64)
    state_prompts(folder, PROMPTS["both"])
    encoder = Encoder(str(folder), "cpu")
    assert encoder.max_query_tokens < encoder.id.max_tokens - 5
    fits = " a" * encoder.max_text_tokens
    assert encoder.is_truncated([fits, f"{fits} a"]) == [False, True]
    first, second, third = encoder.encode_passages([fits, f"{fits} violin", f"{fits[:-1]}z"])
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert not np.allclose(first, third, atol=1e-3)


def test_identity_of_vectors_tells_prompts_apart(qwen: Path) -> None:
    state_prompts(qwen, {})
    ids = [
        Encoder(EncoderConfig(name=str(qwen), query_prompt=query, document_prompt=document), "cpu").id
        for query, document in (("", ""), ("a", ""), ("", "a"))
    ]
    assert ids[0].vectors_sha256 == ids[0].sha256
    assert len({found.vectors_sha256 for found in ids}) == 3
    assert [Encoder(found.settings, "cpu").id for found in ids] == ids


def test_fusion_and_dense_search_read_queries_and_passages_as_such(qwen: Path) -> None:
    state_prompts(qwen, PROMPTS["both"])
    encoder, library = Encoder(str(qwen), "cpu"), SentenceTransformer(str(qwen), device="cpu")
    query = Query(TEXTS[0])
    ranker = FusionRanker(FusionModel(name="a", ranker="fusion", sparse_weight=0.0), encoder, None)
    prepared = ranker.prepare(query, [Passage(str(number), text) for number, text in enumerate(TEXTS)])
    (ranking,) = rank_windows(ranker, [Window(prepared.query, prepared.passages)])
    queries = library.encode_query([query.text], normalize_embeddings=True)
    passages = library.encode_document(TEXTS, normalize_embeddings=True)
    assert ranking.cosines == pytest.approx((passages @ queries[0]).tolist(), abs=0.02)  # in bfloat16
    np.testing.assert_allclose(query_vectors(encoder, [query]), queries, atol=1e-5)


def test_settings_pool_and_end_texts_where_the_folder_says_nothing(qwen: Path) -> None:
    """As the folders of E2Rank, whose tokenizer writes no end token."""
    expected = Encoder(str(qwen), "cpu").encode_passages(TEXTS)
    (qwen / "modules.json").unlink()
    change_json(qwen / "tokenizer.json", post_processor=None)
    change_json(qwen / "tokenizer_config.json", model_max_length=64)
    ended = EncoderConfig(name=str(qwen), pooling="lasttoken", end_token="<|endoftext|>")
    encoder = Encoder(ended, "cpu")
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5)
    assert Encoder(encoder.id.settings, "cpu").id == encoder.id
    without_end = Encoder(ended.model_copy(update={"end_token": ""}), "cpu")
    assert not np.allclose(without_end.encode_passages(TEXTS), expected, atol=1e-3)
    assert len({encoder.id.vectors_sha256, without_end.id.vectors_sha256, encoder.id.sha256}) == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pooling": None}, r"does not say how to pool, .*; set encoder\.pooling"),
        ({"end_token": "<end>"}, r"does not have the end_token '<end>'; correct encoder\.end_token"),
    ],
)
def test_missing_pooling_and_unknown_end_token_are_named(qwen: Path, changed: dict[str, str], message: str) -> None:
    (qwen / "modules.json").unlink()
    settings = EncoderConfig(name=str(qwen), pooling="lasttoken").model_copy(update=changed)
    with pytest.raises(CheckpointError, match=message):
        Encoder(settings, "cpu")


def test_pooling_of_a_folder_is_not_replaced(qwen: Path) -> None:
    with pytest.raises(CheckpointError, match=r"states its pooling in modules\.json; leave encoder\.pooling"):
        Encoder(EncoderConfig(name=str(qwen), pooling="mean"), "cpu")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({"web_query": "a", "sts_query": "b"}, "web_query, sts_query, but none for `query` or `document`"),
        ({"query": 5}, "cannot be loaded"),
        ({"query": "word " * 300}, "64 tokens, and prompt and special tokens of a query take 120.: none is left"),
    ],
)
def test_prompts_that_cannot_be_used_are_named(qwen: Path, prompts: dict[str, object], message: str) -> None:
    state_prompts(qwen, prompts)
    with pytest.raises(CheckpointError, match=message):
        Encoder(str(qwen), "cpu")


def test_folder_with_prompts_for_other_uses_runs_with_a_setting(qwen: Path) -> None:
    state_prompts(qwen, {"sts": "similar: "})
    encoder = Encoder(EncoderConfig(name=str(qwen), query_prompt=""), "cpu")
    assert (encoder.id.query_prompt, encoder.id.document_prompt) == ("", "")


@pytest.mark.parametrize(
    ("given", "message"), [("{name: a, prompt: b}", r"encoder: prompt: unknown setting"), ("", "at least 1 character")]
)
def test_settings_that_cannot_be_read_are_named(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.of(given)
