"""Files of a folder are counted before a library makes objects of them."""

import json
from pathlib import Path

import pytest

from rerank.checkpoints import counted_files
from rerank.checkpoints.counted_files import check_counts
from rerank.errors import CheckpointError
from tests.json_files import change_json
from tests.small_tokenizers import byte_level


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    byte_level().save_pretrained(tmp_path)
    return tmp_path / "tokenizer.json"


def test_tokenizer_may_have_any_vocabulary_and_few_other_values(tokenizer):
    vocabulary = {"type": "BPE", "vocab": {f"t{n}": n for n in range(50_000)}, "merges": []}
    change_json(tokenizer, model=vocabulary)
    check_counts(tokenizer)
    change_json(tokenizer, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has 2,\d\d\d values beside its vocabulary, and .* 2,0"):
        check_counts(tokenizer)


def test_padding_is_bounded(tokenizer):
    change_json(tokenizer, padding={"strategy": {"Fixed": 10**12}, "pad_id": 0})
    with pytest.raises(CheckpointError, match=r"has texts padded to 1,000,000,000,000 tokens, .* at most 1,000,000"):
        check_counts(tokenizer)


def test_tokenizer_of_millions_of_values_is_not_parsed(tokenizer, monkeypatch):
    change_json(tokenizer, model={"vocab": [[]] * 100})
    monkeypatch.setattr(counted_files, "_MAX_TOKENIZER_VALUES", 99)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(CheckpointError, match="has more than 99 values"):
        check_counts(tokenizer)


@pytest.mark.parametrize("content", [b"", b"{", b"[5]", b"[" * 100_000, b"\xff"])
def test_file_that_is_no_tokenizer_is_left_to_the_library(tokenizer, content):
    tokenizer.write_bytes(content)
    check_counts(tokenizer)


@pytest.mark.parametrize("size", [0, 10**6, 2**63])
def test_header_that_is_longer_than_its_file_is_left_to_the_library(tmp_path, size):
    path = tmp_path / "model.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}")
    check_counts(path)


def test_long_header_and_many_tensors_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    header = json.dumps({f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(30)}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    check_counts(path)
    monkeypatch.setattr(counted_files, "_MAX_TENSORS", 29)
    with pytest.raises(CheckpointError, match=r"has 30 tensors, and a model has at most 29; copy"):
        check_counts(path)
    monkeypatch.setattr(counted_files, "_MAX_HEADER_BYTES", 100)
    with pytest.raises(CheckpointError, match=rf"has a header of {len(header):,} bytes, and a model has at most 100"):
        check_counts(path)
