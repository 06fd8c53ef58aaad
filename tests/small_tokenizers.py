"""Small tokenizers that split text as public families do: explicit vocabularies and merges, no downloads."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

Merge = tuple[str, str]

CAPITALS = string.ascii_uppercase
LETTERS = string.ascii_letters
VISIBLE = LETTERS + string.digits + string.punctuation

#: Markers are plain text, no BOS, with a system role.
ZEPHYR_CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
#: Markers are plain text, writes BOS, without a system role.
INSTRUCT_CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles take turns, and the user begins') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
#: Markers are special tokens, no BOS, with a system role.
CHATML_CHAT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Markers are special tokens, writes BOS, with a system role, contents are trimmed.
HEADER_CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def metaspace(chat: Literal["zephyr", "instruct"] = "zephyr") -> PreTrainedTokenizerFast:
    """Mistral v1, Llama-2 and Zephyr: `▁A` is not `A`, `][` merges, and BOS is added to the chat template's."""
    special = ["<unk>", "<s>", "</s>"]
    merges = [("▁", letter) for letter in LETTERS] + [("▁", "["), ("]", "[")]
    byte_tokens = [byte_token(byte) for byte in range(256)]
    tokenizer = Tokenizer(
        models.BPE(
            numbered([*special, *byte_tokens, *joined(merges), "▁", *VISIBLE]),
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    add_special(tokenizer, special)
    tokenizer.post_processor = template("<s> $A", tokenizer)
    return wrapped(
        tokenizer,
        {"zephyr": ZEPHYR_CHAT, "instruct": INSTRUCT_CHAT}[chat],
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    )


def byte_level() -> PreTrainedTokenizerFast:
    """Qwen2 to Qwen3 (byte-level BPE as in GPT-2): `[A` is one token, `[O` and `[Q` are two, and there is no BOS."""
    tokenizer = byte_level_bpe(digits=r"\p{N}")
    add_special(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return wrapped(
        tokenizer, CHATML_CHAT, eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=["<|im_start|>"]
    )


def byte_level_numbers() -> PreTrainedTokenizerFast:
    """Llama-3: as `byte_level`, but numbers to 999 are single tokens and BOS is added to the chat template's."""
    numbers = [f"{number:0{width}}" for width in (2, 3) for number in range(10**width)]
    tokenizer = byte_level_bpe(digits=r"\p{N}{1,3}", whole_words=numbers)
    add_special(tokenizer, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    tokenizer.post_processor = template("<|begin_of_text|> $A", tokenizer)
    return wrapped(
        tokenizer,
        HEADER_CHAT,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        extra_special_tokens=["<|start_header_id|>", "<|end_header_id|>"],
    )


def uncased() -> PreTrainedTokenizerFast:
    """BERT (lower-casing WordPiece): `A` and `a` are the same token, newlines vanish, and there is no chat template."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    starts = string.ascii_lowercase + string.digits
    pieces = [*starts, *string.punctuation, *(f"##{character}" for character in starts)]
    tokenizer = Tokenizer(models.WordPiece(numbered([*special, *pieces]), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    add_special(tokenizer, special)
    tokenizer.post_processor = template("[CLS] $A [SEP]", tokenizer)
    return wrapped(tokenizer, None, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def no_single_letters() -> PreTrainedTokenizerFast:
    """A vocabulary for another script: only the letters A to H are tokens, the others are two bytes."""
    known = CAPITALS[:8]
    pieces = [*known, *(character for character in string.printable if character not in LETTERS)]
    byte_tokens = [byte_token(byte) for byte in range(0x80, 0x100)]
    vocabulary = numbered(["<unk>", *byte_tokens, *pieces])
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    # Every other letter is replaced by a character with two bytes in UTF-8 (N'Ko).
    substitutes = {letter: chr(0x7C0 + place) for place, letter in enumerate(LETTERS) if letter not in known}
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(*pair) for pair in substitutes.items()])
    restored = [decoders.Replace(substitute, letter) for letter, substitute in substitutes.items()]
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *restored])
    add_special(tokenizer, ["<unk>", "<|im_start|>", "<|im_end|>"])
    return wrapped(
        tokenizer, CHATML_CHAT, unk_token="<unk>", eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>"]
    )


def byte_level_bpe(digits: str, whole_words: Sequence[str] = ()) -> Tokenizer:
    """The model and the split of Qwen and Llama-3; `whole_words` are tokens without merges."""
    merges = [("[", letter) for letter in CAPITALS if letter not in "OQ"]
    merges += [("Ġ", letter) for letter in LETTERS] + [("Ġ", "["), ("Ċ", "Ċ")]
    vocabulary = numbered([*byte_alphabet(), *joined(merges), *whole_words])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=bool(whole_words)))
    split = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte, in its order: visible characters are themselves, so that `A` has id 32."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [*map(chr, visible), *(chr(0x100 + place) for place in range(256 - len(visible)))]


def byte_token(byte: int) -> str:
    return f"<0x{byte:02X}>"


def joined(merges: Iterable[Merge]) -> list[str]:
    return ["".join(merge) for merge in merges]


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: place for place, token in enumerate(tokens)}


def add_special(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])


def template(single: str, tokenizer: Tokenizer) -> processors.TemplateProcessing:
    """Adds the special tokens of `single`, such as "<s> $A", around a text."""
    special = [token for token in single.split() if token != "$A"]
    return processors.TemplateProcessing(
        single=single, special_tokens=[(token, tokenizer.token_to_id(token)) for token in special]
    )


def wrapped(tokenizer: Tokenizer, chat_template: str | None, **special: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=chat_template,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )


#: One tokenizer per family, for tests that run on all of them.
FAMILIES = {
    "metaspace": metaspace(),
    "instruct": metaspace("instruct"),
    "byte-level": byte_level(),
    "byte-level numbers": byte_level_numbers(),
    "uncased": uncased(),
}
