"""Identifiers and prompts on the tokenizers of public models, against the libraries that their publishers use.

    pip install --no-deps --target DIR mistral-common dashscope llama-models
    pytest -m public_tokenizers --public-tokenizers DIR

They are in a separate folder, because transformers loads Mistral checkpoints otherwise where mistral-common is
installed.
"""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from rerank.prompting.identifiers import IdentifierKind, derive_identifiers
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.templates import load_template
from tests.fakes import prepared_window
from tests.rerank.prompting.test_tokens import TEXTS, as_a_whole

pytestmark = pytest.mark.public_tokenizers

#: How Llama-3 splits text; Qwen splits numbers into digits.
LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPLIT = LLAMA_3_SPLIT.replace("{1,3}", "")


@dataclass(frozen=True)
class Public:
    """A tokenizer as transformers has it, and how its publisher's library encodes a text."""

    tokenizer: PreTrainedTokenizerBase
    encode: Callable[[str], list[int]]


def sentencepiece(path: Path, scratch: Path) -> Public:
    import sentencepiece

    shutil.copy(path, scratch / "tokenizer.model")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = LlamaTokenizer.from_pretrained(scratch, add_bos_token=True)
    return Public(tokenizer, lambda text: [reference.bos_id(), *reference.encode(text)])


def tiktoken(path: Path, split: str) -> Public:
    from tiktoken import Encoding
    from tiktoken.load import load_tiktoken_bpe

    converted = TikTokenConverter(vocab_file=str(path), pattern=split, extra_special_tokens=["<|end|>"]).converted()
    reference = Encoding("reference", pat_str=split, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={})
    return Public(PreTrainedTokenizerFast(tokenizer_object=converted, eos_token="<|end|>"), reference.encode)


@pytest.fixture(scope="module")
def publics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Public]:
    folder: Path = request.config.getoption("--public-tokenizers")
    mistral = folder / "mistral_common" / "data"
    v1, v3 = mistral / "tokenizer.model.v1", mistral / "mistral_instruct_tokenizer_240323.model.v3"
    return {
        "mistral-v1": sentencepiece(v1, tmp_path_factory.mktemp("v1")),
        "mistral-v3": sentencepiece(v3, tmp_path_factory.mktemp("v3")),
        "qwen": tiktoken(folder / "dashscope" / "resources" / "qwen.tiktoken", QWEN_SPLIT),
        "llama-3": tiktoken(folder / "llama_models" / "llama3" / "tokenizer.model", LLAMA_3_SPLIT),
    }


@pytest.mark.parametrize(
    ("name", "bracket", "a", "letters", "numbers"),
    [
        ("mistral-v1", 28792, 28741, 52, 9),
        ("mistral-v3", 29560, 29509, 52, 9),
        ("qwen", 58, 32, 52, 9),
        ("llama-3", 58, 32, 52, 999),
    ],
)
def test_identifiers_are_the_tokens_behind_the_bracket(publics, name, bracket, a, letters, numbers):
    tokenizer = publics[name].tokenizer
    by_letters = derive_identifiers(tokenizer, IdentifierKind.LETTERS)
    assert (len(by_letters), by_letters.bracket_id, by_letters.token_ids[0]) == (letters, bracket, a)
    assert len(derive_identifiers(tokenizer, IdentifierKind.NUMBERS)) == numbers


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("mistral-v1", "A", [330]),
        ("mistral-v3", "A", [1098]),
        ("qwen", "[A", [22519]),
        ("qwen", "[O", [58, 46]),
        ("llama-3", "[A", [23335]),
        ("llama-3", "[Q", [58, 48]),
        ("llama-3", "[10]", [58, 605, 60]),
    ],
)
def test_traps_are_those_of_the_small_tokenizers(publics, name, text, ids):
    assert publics[name].tokenizer(text, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.parametrize("name", ["mistral-v1", "mistral-v3", "qwen", "llama-3"])
@pytest.mark.parametrize("n", [0, 1, 20])
def test_prompt_is_what_the_publishers_library_makes_of_its_text(publics, name, n):
    public = publics[name]
    renderer = ListwiseRenderer(load_template("first"), public.tokenizer, 4096, answer_tokens=1)
    names = derive_identifiers(public.tokenizer, IdentifierKind.LETTERS).texts
    texts = [f"Passage {place}: naïve [B] > {place * 999} 🦟 <s> …" for place in range(n)]
    window = prepared_window(renderer, "what is it?", texts)
    rendered = renderer.render(window.query, names[:n], [passage.text for passage in window.passages])
    prompt = renderer.prompt(window, names)
    assert prompt.token_ids == public.encode(rendered)
    assert prompt.truncated == ()


@pytest.mark.parametrize("name", ["mistral-v1", "mistral-v3", "qwen", "llama-3"])
@pytest.mark.parametrize("template", ["first", "first_smollm2"])
def test_prompt_from_the_tokens_of_passages_is_that_of_the_whole_text(publics, name, template):
    tokenizer = copy.deepcopy(publics[name].tokenizer)  # a template without chat markup changes it
    renderers = [ListwiseRenderer(load_template(template), tokenizer, 4096, 1, tokens) for tokens in (0, 5)]
    assert all(renderer.prompt_tokenizer.cuts_at_spaces for renderer in renderers)

    @given(renderer=st.sampled_from(renderers), texts=TEXTS)
    def check(renderer: ListwiseRenderer, texts: list[str]) -> None:
        window = prepared_window(renderer, "how long", texts)
        assert renderer.prompt(window, "ABCDE").token_ids == as_a_whole(renderer, window, "ABCDE")

    check()
