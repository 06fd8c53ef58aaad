"""What a list of FIRST costs without the model's pass, which a GPU makes short: its prompts, and all of the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tokenizers import Tokenizer

from rerank.checkpoints import bundled
from rerank.config import load_config
from rerank.models.loading import load_tokenizer_of
from rerank.models.tokenizer import splitter_of
from rerank.prompting.identifiers import IdentifierKind
from rerank.rankers.first import FirstPrompts
from rerank.reranking.blocking import Reranker
from rerank.types import Passage, Query, Window
from scripts.bench.models import LlamaSize, llama
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import PASSAGES, Workload

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
    splitter, values = splitter_of(tokenizer), Values()
    template = str(bundled.FIRST / "template.yaml")
    for kind, passage_tokens in _PASSAGE_TOKENS.items():
        prompts = FirstPrompts(tokenizer, 8192, template, IdentifierKind.LETTERS, passage_tokens)
        model = {"name": "m", "ranker": "first", "path": str(folder), "template": template}
        config = load_config(None, [model | {"passage_tokens": passage_tokens, "precision": "float32"}])
        with Reranker(config.model_copy(update={"models": config.models[:1]})) as reranker:
            for query, candidates in workload.lists():
                texts = [candidate.text for candidate in candidates]
                variants: dict[str, Callable[[], object]] = {
                    "once": partial(_tokenize, splitter, texts),
                    "prompts": partial(_prompts, prompts, Query(query), candidates),
                    "service": partial(reranker.rerank, query, candidates),
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


def _prompts(prompts: FirstPrompts, query: Query, candidates: Sequence[Passage]) -> list[Window]:
    prepared = prompts.prepare(query, candidates)
    starts = range(max(0, len(candidates) - PASSAGES), -1, -_STRIDE)
    return [prompts.encode(Window(prepared.query, prepared.passages[start : start + PASSAGES])) for start in starts]
