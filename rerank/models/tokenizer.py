"""Loads tokenizers. A tokenizer in SentencePiece's format is converted, and compared with SentencePiece itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import generate_merges

from rerank.checkpoints.settings_files import read_settings
from rerank.errors import CheckpointError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_SENTENCEPIECE_FILE = "tokenizer.model"
_CONVERTED_FILE = "tokenizer.json"
#: Every folder with a tokenizer has a file with one of these names.
_FILES = ("tokenizer.*", "vocab*", "*.model", "*.tiktoken", "tekken.json")
_WAY_OUT = f"add {_CONVERTED_FILE} of the model on the hub, or one that transformers 4 saves"
#: Classes that are converted as Llama's tokenizer; Mistral's and Zephyr's tokenizers have them.
_LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
#: Texts with the cases that conversions got wrong: brackets at the start of a segment, double spaces, line ends, bytes,
#: digits, accents.
_CHECKED_TEXTS = ("Passage 1: [", "]\n\n[2] ", " [A] > [B]  is   naïve", "27 °C 🦟\tvoilà.", "    x")


def backend_tokenizer_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Copies a tokenizer's backend, without truncation and padding. Threads may share the copy."""
    splitter: Tokenizer = copy.deepcopy(tokenizer).backend_tokenizer
    splitter.no_truncation()
    splitter.no_padding()
    return splitter


def load_tokenizer(source: Path | str, **options: Any) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a folder or a model on the hub.

    A folder with tokenizer.model and without tokenizer.json is converted as transformers 4 did it: merges in the order
    of the scores, and (`legacy`) a "▁" before every text between special tokens. transformers 5 orders the merges by
    their ids, and reads "]" for "▁]".

    Args:
        source: a folder, or the name of a model on the hub.
        options: arguments of `from_pretrained`.

    Raises:
        CheckpointError: the folder has no tokenizer, or the converted tokenizer splits text unlike SentencePiece.
        OSError, ValueError, KeyError: see `from_pretrained`.
    """
    folder = Path(source)
    options |= {"trust_remote_code": False}
    if folder.is_dir() and not any(found for pattern in _FILES for found in folder.glob(pattern)):
        raise CheckpointError(
            f"{folder} has no tokenizer ({_CONVERTED_FILE}, or {_SENTENCEPIECE_FILE}); copy the files tokenizer* of "
            "the model that it was trained from, or save it there: tokenizer.save_pretrained(folder)"
        )
    if not (folder / _SENTENCEPIECE_FILE).is_file() or (folder / _CONVERTED_FILE).is_file():
        return AutoTokenizer.from_pretrained(source, **options)
    reference, settings = _sentencepiece(folder), read_settings(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") in _LLAMA_CLASSES:
        adds_bos = settings.get("add_bos_token", True)  # the default of transformers 4
        tokenizer = LlamaTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, add_bos_token=adds_bos
        )
        _convert(tokenizer.backend_tokenizer, reference, legacy=settings.get("legacy", True) is not False)
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    _compare(folder, tokenizer, reference)
    return tokenizer


def _convert(backend: Tokenizer, reference: SentencePieceProcessor, legacy: bool) -> None:
    """Changes the tokenizer so that it splits text as the SentencePiece model does."""
    pieces = [(reference.id_to_piece(token), reference.get_score(token)) for token in range(reference.get_piece_size())]
    vocabulary = {piece: token for token, (piece, _) in enumerate(pieces)}
    merges = generate_merges(vocabulary, dict(pieces))
    backend.model = BPE(vocabulary, merges, unk_token=pieces[reference.unk_id()][0], fuse_unk=True, byte_fallback=True)
    if legacy:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.pre_tokenizer = None


def _sentencepiece(folder: Path) -> SentencePieceProcessor:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise CheckpointError(
            f"{folder} has {_SENTENCEPIECE_FILE} and no {_CONVERTED_FILE}, and the package sentencepiece, which its "
            f"conversion needs, is not installed; install it, or {_WAY_OUT}"
        ) from error
    try:
        return SentencePieceProcessor(model_file=str(folder / _SENTENCEPIECE_FILE))
    except RuntimeError as error:
        raise CheckpointError(f"{folder / _SENTENCEPIECE_FILE} cannot be read: {error}; {_WAY_OUT}") from error


def _compare(folder: Path, tokenizer: PreTrainedTokenizerBase, reference: SentencePieceProcessor) -> None:
    for text in _CHECKED_TEXTS:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if (expected := reference.encode(text)) != ids:
            raise CheckpointError(
                f"{folder} has {_SENTENCEPIECE_FILE} and no {_CONVERTED_FILE}, and its conversion splits {text!r} into "
                f"{_pieces(reference, ids)} where SentencePiece has {_pieces(reference, expected)}; {_WAY_OUT}"
            )


def _pieces(reference: SentencePieceProcessor, ids: list[int]) -> str:
    size = reference.get_piece_size()
    return " ".join(reference.id_to_piece(token) if token < size else f"<{token}>" for token in ids)
