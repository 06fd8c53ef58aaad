"""Measures the time of FIRST without the model's pass: sanitizing, tokenizing and rendering."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenizers import Tokenizer

from rerank.checkpoints import bundled
from rerank.config import load_config
from rerank.models.loading import load_tokenizer_of
from rerank.models.tokenizer import backend_tokenizer_of
from rerank.prompting.identifiers import IdentifierKind
from rerank.rankers.first import FirstPrompts
from rerank.readers.candidates import CandidateList
from rerank.reranking.blocking import Reranker
from rerank.types import Window
from scripts.bench.models import LlamaSize, llama
from scripts.bench.workload import PASSAGES, Values, Workload, ratios, time_in_turns

_STRIDE = PASSAGES // 2
_ONE_LAYER = LlamaSize(64, 128, 1, 2, 2, 49_152)
#: Tokens of a passage in the prompt: as the bundled checkpoint has it, and as many as fit.
_PASSAGE_TOKENS = {"48 tokens": 48, "whole passages": 0}


def measure_prompts(workload: Workload) -> Values:
    """CPU time of sliding windows over a list, divided by the time of tokenizing its texts in one call.

    "prompts": sanitizing, truncating and tokenizing alone. "service": a request to a model of one narrow layer.
    """
    folder = workload.folder / "one-layer"
    llama(_ONE_LAYER).save_pretrained(folder)
    tokenizer = load_tokenizer_of(bundled.FIRST)
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(folder)
    splitter, values = backend_tokenizer_of(tokenizer), Values()
    template = str(bundled.FIRST / "template.yaml")
    for kind, passage_tokens in _PASSAGE_TOKENS.items():
        prompts = FirstPrompts(tokenizer, 8192, template, IdentifierKind.LETTERS, passage_tokens)
        model = {"name": "m", "ranker": "first", "path": str(folder), "template": template}
        config = load_config(None, [model | {"passage_tokens": passage_tokens, "precision": "float32"}])
        with Reranker(config.model_copy(update={"models": config.models[:1]})) as reranker:
            for item in workload.lists:
                texts = [candidate.text for candidate in item.candidates]
                variants: dict[str, Callable[[], object]] = {
                    "once": partial(_tokenize, splitter, texts),
                    "prompts": partial(_prompts, prompts, item),
                    "service": partial(reranker.rerank, item.query, item.candidates),
                }
                seconds = time_in_turns(variants, 1)
                for name in ("prompts", "service"):
                    values.setdefault(f"{name}_vs_tokenizing once, {kind}", []).extend(
                        ratios(seconds[name], seconds["once"])
                    )
                    values.setdefault(f"{name}, {kind}, ms", []).extend(1000 * s for s in seconds[name])
    return values


def _tokenize(splitter: Tokenizer, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    return [(found.ids, found.offsets) for found in splitter.encode_batch(texts)]


def _prompts(prompts: FirstPrompts, item: CandidateList) -> list[Window]:
    prepared = prompts.prepare(item.query, item.candidates)
    starts = range(max(0, len(item.candidates) - PASSAGES), -1, -_STRIDE)
    return [prompts.encode(Window(prepared.query, prepared.passages[start : start + PASSAGES])) for start in starts]
