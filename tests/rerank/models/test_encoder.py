"""The encoder: unit vectors, bitwise equal for equal texts, safe to share between threads."""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from rerank.config import EncoderConfig, FusionModel
from rerank.errors import CheckpointError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.encoder_loading import is_folder, locate_encoder
from rerank.rankers.fusion import FusionRanker
from rerank.retrieval.dense import query_vectors
from rerank.types import Query
from tests.fakes import ranking_of
from tests.json_files import change_json
from tests.pe_checkpoints import change_config, change_weights
from tests.small_encoder import state_prompts, write_qwen_encoder, write_small_encoder

TEXTS = ["a flea", "Robins sense the magnetic field of the earth.", "word " * 90]  # of different lengths; one too long
QUERY, DOCUMENT = "Instruct: find what answers\nQuery:", "title: none | text: "

PROMPTS: Mapping[str, dict[str, object]] = {
    "both": {"query": QUERY, "document": DOCUMENT},
    "query": {"query": QUERY, "document": ""},
    "document": {"document": DOCUMENT, "classification": "classify: "},
    "none": {},
}


def test_default_encoder_is_the_published_one(encoder):
    assert (encoder.id.name, encoder.id.dimension, encoder.id.max_tokens) == (DEFAULT_ENCODER, 384, 256)
    assert encoder.id.sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_equal_texts_get_bitwise_equal_vectors(encoder):
    texts = ["tides", *(f"filler number {n} of some length" * (n % 5) for n in range(60)), "tides"]
    vectors = encoder.encode_passages(texts)
    assert np.array_equal(vectors[0], vectors[-1])


def test_normal_forms_of_a_text_get_the_same_vector(tmp_path):
    """By a tokenizer that reads bytes, for which letter and accent are other tokens than the letter with its accent."""
    small = Encoder(str(write_qwen_encoder(tmp_path)), "cpu")
    assert small.token_counts(["cafe\u0301"]) != small.token_counts(["caf\u00e9"])
    for encode in (small.encode_queries, small.encode_passages):
        composed, decomposed = encode(["caf\u00e9", "cafe\u0301"])
        assert np.array_equal(composed, decomposed)


def test_folder_of_the_working_directory_does_not_replace_the_default_encoder(encoder, tmp_path, monkeypatch):
    (tmp_path / DEFAULT_ENCODER).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate_encoder(DEFAULT_ENCODER) == encoder.folder
    assert not is_folder(DEFAULT_ENCODER)
    assert locate_encoder("sentence-transformers") == Path("sentence-transformers")


def test_threads_may_share_the_encoder(encoder):
    """A fast tokenizer raises "Already borrowed" when two threads configure it."""
    texts = [f"thread text {n}" for n in range(8)]
    expected = encoder.encode_passages(texts)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(encoder.encode_passages, texts) for _ in range(12)]
        checks = [pool.submit(encoder.token_counts, texts) for _ in range(12)]
        assert all(np.allclose(run.result(), expected, atol=1e-6) for run in runs)
        assert all(check.result() == [3] * 8 for check in checks)


def test_end_of_a_long_text_is_neither_tokenized_nor_changes_its_vector(encoder, monkeypatch):
    """A passage of 10 MB took 39 s for a vector of its first 256 tokens."""
    texts = ["a flea lives a year " * 400, "short"]
    expected, read = (encoder.encode_passages(texts), encoder.encode_queries(texts)), list[int]()
    count, encode = Encoder._count, SentenceTransformer.encode

    def watched(self: Encoder, texts: Sequence[str]) -> list[int]:
        read.extend(map(len, texts))
        return count(self, texts)

    def watched_encode(self: SentenceTransformer, inputs: list[str], **options: Any) -> Any:
        read.extend(map(len, inputs))
        return encode(self, inputs, **options)

    monkeypatch.setattr(Encoder, "_count", watched)
    monkeypatch.setattr(SentenceTransformer, "encode", watched_encode)
    longer = [texts[0] * 100, "short"]
    for found, of_side in zip((encoder.encode_passages(longer), encoder.encode_queries(longer)), expected, strict=True):
        assert np.array_equal(found, of_side)
    assert encoder.vectors_and_truncation(longer)[1] == [True, False]
    assert max(read) < 10_000 < len(longer[0])


def test_limited_encoder_shares_weights_and_keeps_its_own_vectors(encoder):
    limited = encoder.limited(16)
    assert encoder.limited(encoder.id.max_tokens) is encoder
    assert (limited.id.max_tokens, limited.max_text_tokens, encoder.id.max_tokens) == (16, 14, 256)
    assert limited.transformer.get_input_embeddings().weight is encoder.transformer.get_input_embeddings().weight
    assert limited.vector_cache is not encoder.vector_cache
    long = "flea " * 40
    expected = encoder.encode_passages(["flea " * 14])
    np.testing.assert_allclose(limited.encode_passages([long]), expected, atol=1e-6)
    assert limited.vectors_and_truncation([long, "flea"])[1] == [True, False]
    assert not np.allclose(encoder.encode_passages([long]), expected, atol=1e-3)


def test_limit_that_leaves_no_token_for_a_text_is_refused(encoder):
    with pytest.raises(CheckpointError, match="reads 2 tokens, and prompt and special tokens of a query take 2"):
        encoder.limited(2)


def test_token_ends_do_not_wait_for_a_batch_of_vectors(encoder):
    encoder.token_ends("the copy of the tokenizer is made once")
    with ThreadPoolExecutor(1) as thread, encoder._lock:
        assert thread.submit(encoder.token_ends, "A flea lives.").result(timeout=5).tolist() == [1, 6, 12, 13]


@pytest.fixture
def copied(encoder: Encoder, tmp_path: Path) -> Path:
    """A folder with the files of the default encoder."""
    return Path(shutil.copytree(encoder.folder, tmp_path / "copied"))


def test_folder_is_known_by_its_path_its_name_and_the_one_in_its_config(copied):
    change_config(copied, _name_or_path="publisher/encoder")
    encoder = Encoder(str(copied), "cpu")
    assert encoder.names == {str(copied), "copied", "publisher/encoder"}


def test_missing_and_unknown_weights_are_named(copied):
    gated = {f"encoder.layer.{n}.mlp.gated.weight": torch.ones(n + 1) for n in range(6)}
    change_weights(copied, gated, without="encoder.layer.3.output.dense.weight")
    message = (
        r"copied does not fit its config\.json: weights without encoder\.layer\.3\.output\.dense\.weight; with unknown "
        r"encoder\.layer\.0\.mlp\.gated\.weight, .* and 1 more\. Download it again"
    )
    with pytest.raises(CheckpointError, match=message):
        Encoder(str(copied), "cpu")


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
def test_vectors_equal_sentence_transformers(folder, stated):
    state_prompts(folder, PROMPTS[stated])
    encoder, library = Encoder(str(folder), "cpu"), SentenceTransformer(str(folder), device="cpu")
    queries, passages = encoder.encode_queries(TEXTS), encoder.encode_passages(TEXTS)
    np.testing.assert_allclose(queries, library.encode_query(TEXTS, normalize_embeddings=True), atol=1e-5)
    np.testing.assert_allclose(passages, library.encode_document(TEXTS, normalize_embeddings=True), atol=1e-5)
    assert np.allclose(queries, passages, atol=1e-3) == (stated == "none")


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return write_qwen_encoder(tmp_path / "encoder")


def test_passage_stands_for_document(qwen):
    """encode_document of sentence-transformers 6.2 takes no prompt of such a folder."""
    state_prompts(qwen, {"query": "query: ", "passage": "passage: "})
    expected = SentenceTransformer(str(qwen), device="cpu").encode(
        TEXTS, prompt_name="passage", normalize_embeddings=True
    )
    np.testing.assert_allclose(Encoder(str(qwen), "cpu").encode_passages(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("stated", ["none", "both"])
def test_settings_give_prompts_where_the_folder_states_none_and_replace_others(qwen, stated):
    state_prompts(qwen, PROMPTS[stated])
    settings = EncoderConfig.of(f"{{name: {qwen}, query_prompt: 'query: ', document_prompt: ''}}")
    encoder, library = Encoder(settings, "cpu"), SentenceTransformer(str(qwen), device="cpu")
    expected = library.encode(TEXTS, prompt="query: ", normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-5)
    expected = library.encode(TEXTS, prompt="", normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("in_chat", [False, True])
def test_token_limit_counts_the_prompt(tmp_path, in_chat):
    folder = write_qwen_encoder(tmp_path / "encoder", in_chat=in_chat)
    change_json(folder / "tokenizer_config.json", model_max_length=64)
    state_prompts(folder, PROMPTS["both"])
    encoder = Encoder(str(folder), "cpu")
    assert encoder.max_query_tokens < encoder.id.max_tokens - 5
    fits = " a" * encoder.max_text_tokens
    assert encoder.vectors_and_truncation([fits, f"{fits} a"])[1] == [False, True]
    first, second, third = encoder.encode_passages([fits, f"{fits} violin", f"{fits[:-1]}z"])
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert not np.allclose(first, third, atol=1e-3)


def test_identity_of_vectors_tells_prompts_apart(qwen):
    state_prompts(qwen, {})
    ids = [
        Encoder(EncoderConfig(name=str(qwen), query_prompt=query, document_prompt=document), "cpu").id
        for query, document in (("", ""), ("a", ""), ("", "a"))
    ]
    assert ids[0].vectors_sha256 == ids[0].sha256
    assert len({found.vectors_sha256 for found in ids}) == 3
    assert [Encoder(found.settings, "cpu").id for found in ids] == ids


def test_fusion_and_dense_search_read_queries_and_passages_as_such(qwen):
    state_prompts(qwen, PROMPTS["both"])
    encoder, library = Encoder(str(qwen), "cpu"), SentenceTransformer(str(qwen), device="cpu")
    query = Query(TEXTS[0])
    ranker = FusionRanker(FusionModel(name="a", ranker="fusion", sparse_weight=0.0), encoder, None)
    ranking = ranking_of(ranker, query, TEXTS)
    queries = library.encode_query([query.text], normalize_embeddings=True)
    passages = library.encode_document(TEXTS, normalize_embeddings=True)
    assert ranking.cosines == pytest.approx((passages @ queries[0]).tolist(), abs=0.02)  # in bfloat16
    np.testing.assert_allclose(query_vectors(encoder, [query]), queries, atol=1e-5)


def test_settings_pool_and_end_texts_where_the_folder_says_nothing(qwen):
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
def test_missing_pooling_and_unknown_end_token_are_named(qwen, changed, message):
    (qwen / "modules.json").unlink()
    settings = EncoderConfig(name=str(qwen), pooling="lasttoken").model_copy(update=changed)
    with pytest.raises(CheckpointError, match=message):
        Encoder(settings, "cpu")


def test_pooling_of_a_folder_is_not_replaced(qwen):
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
def test_prompts_that_cannot_be_used_are_named(qwen, prompts, message):
    state_prompts(qwen, prompts)
    with pytest.raises(CheckpointError, match=message):
        Encoder(str(qwen), "cpu")


def test_folder_with_prompts_for_other_uses_runs_with_a_setting(qwen):
    state_prompts(qwen, {"sts": "similar: "})
    encoder = Encoder(EncoderConfig(name=str(qwen), query_prompt=""), "cpu")
    assert (encoder.id.query_prompt, encoder.id.document_prompt) == ("", "")


@pytest.mark.parametrize(
    ("given", "message"), [("{name: a, prompt: b}", r"encoder: prompt: unknown setting"), ("", "at least 1 character")]
)
def test_settings_that_cannot_be_read_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.of(given)
