"""Tokenizers in SentencePiece's format: converted as transformers 4 did, or refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError
from rerank.models.tokenizer import load_tokenizer
from tests.small_tokenizers import metaspace

sentencepiece = pytest.importorskip("sentencepiece")

#: Text whose frequent double spaces and brackets get separate pieces.
CORPUS = [
    f"Passage {n}: [{n}]  the {word} is  what the {word} was [A] > [B]" for n in range(60) for word in ("moon", "sea")
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of the kind of Llama's and Mistral's: BPE with byte fallback and a space before every text."""
    prefix = tmp_path_factory.mktemp("sentencepiece") / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(prefix),
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Callable[..., Path]:
    def write(**settings: object) -> Path:
        shutil.copy(model, tmp_path / "tokenizer.model")
        text = json.dumps({"tokenizer_class": "LlamaTokenizer"} | settings)
        (tmp_path / "tokenizer_config.json").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def pieces(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    return tokenizer.tokenize(text, add_special_tokens=False)


def test_text_is_split_as_sentencepiece_splits_it(model, folder):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model))
    tokenizer = load_tokenizer(folder(legacy=True))
    for text in ("the moon is  what", " [A] > [B]", "]\n[7]", "naïve 🦟", *CORPUS[:20]):
        assert pieces(tokenizer, text) == reference.encode(text, out_type=str)


def test_text_after_a_special_token_begins_with_a_space(folder):
    """As in the publishers' transformers 4: "▁]" and not "]", which changes the order of PE-Rank's windows."""
    tokenizer = load_tokenizer(folder())
    tokenizer.add_tokens(["<PLACEHOLDER>"], special_tokens=True)
    split = pieces(tokenizer, "the [<PLACEHOLDER>] is")
    after = split[split.index("<PLACEHOLDER>") + 1]
    assert after.startswith("▁")


def test_bos_is_added_unless_the_settings_say_otherwise(folder):
    tokenizer = load_tokenizer(folder())
    assert tokenizer("the moon")["input_ids"][0] == tokenizer.bos_token_id
    assert load_tokenizer(folder(add_bos_token=False))("the moon")["input_ids"][0] != tokenizer.bos_token_id


@pytest.mark.parametrize("settings", [{"legacy": False}, {"tokenizer_class": "PreTrainedTokenizerFast"}])
def test_conversion_that_splits_differently_is_refused(folder, settings):
    message = (
        r"tokenizer\.model and no tokenizer\.json, and its conversion splits .* where SentencePiece has .*; add tok"
    )
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder(**settings))


def test_tokenizer_json_is_read_as_it_is(model, tmp_path):
    """With it, the file of SentencePiece is not looked at."""
    saved = metaspace()
    saved.save_pretrained(tmp_path)
    shutil.copy(model, tmp_path / "tokenizer.model")
    assert pieces(load_tokenizer(tmp_path), "the moon] [A]") == pieces(saved, "the moon] [A]")
