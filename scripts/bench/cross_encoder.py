"""Cross-encoder in the engine and `CrossEncoder.predict`: one request of 100 pairs, and eight of 20 at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import BertConfig, BertForSequenceClassification

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Single, Step
from rerank.models.encoder import Encoder
from rerank.rankers.base import rank_windows
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.types import Candidate, Passage, Query, Window
from scripts.bench.models import TINY, LlamaSize, llama
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import Workload

#: Words of random passages are log-normal around this median, as those of a collection are; MS MARCO's is about 50.
_MEDIAN_WORDS, _SIGMA, _LEAST_WORDS, _MOST_WORDS = 50, 0.45, 8, 300
_WORDS = "a river bank of the water money loan interest rate bird sky flight magnetic field earth winter home"
_MODEL = "cross-encoder"
#: As long as those of published rerankers on causal LMs: some sixty tokens before the query.
_CHAT = (
    "system: you see an instruction, a query and a document. say whether the document does for the query what the "
    "instruction asks for. the answer is one word, and no other answer than yes or no will be read by anyone.\n"
    "user: instruction: find passages of the collection that answer the question of a person who searches it.\n"
    "query: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "document: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}\n"
    "assistant:"
)


@dataclass(frozen=True)
class _List:
    """A query and its passages."""

    query: str
    passages: Sequence[str]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.query, passage) for passage in self.passages]


def measure_cross_encoder(workload: Workload) -> Values:
    """A BERT of the size of MiniLM-L6 with random weights: ours with all stages of the engine, `predict` with its own.

    The library ranks eight requests one after the other, as a service that calls it does, and for comparison in one
    call, which no service can do for requests of several callers.
    """
    folder = write_bert(workload.folder / _MODEL, workload.encoder, workload.quick)
    ranker, library = CrossEncoderRanker(folder, "cpu"), CrossEncoder(str(folder), device="cpu")
    divisor = 5 if workload.quick else 1
    (one,), eight = _lists(1, 100 // divisor), _lists(8, 20 // divisor, seed=1)
    loop = asyncio.new_event_loop()
    engine = Engine({_MODEL: ranker}, EngineConfig())
    loop.run_until_complete(engine.__aenter__())

    async def run(lists: Sequence[_List]) -> None:
        await asyncio.gather(*(engine.run(_request(each)) for each in lists))

    def predict(lists: Sequence[_List]) -> None:
        for each in lists:
            library.predict(each.pairs, show_progress_bar=False)

    try:
        seconds = time_in_turns(
            {
                "ours, one": lambda: loop.run_until_complete(run([one])),
                "predict, one": lambda: predict([one]),
                "ours, eight": lambda: loop.run_until_complete(run(eight)),
                "predict, eight": lambda: predict(eight),
                "predict, all at once": lambda: library.predict(
                    [pair for each in eight for pair in each.pairs], show_progress_bar=False
                ),
            },
            workload.repeats,
        )
    finally:
        loop.run_until_complete(engine.__aexit__(None, None, None))
        loop.close()
    eight_requests = seconds["ours, eight"]
    return {
        "cross_encoder_vs_predict, 100 pairs": ratios(seconds["predict, one"], seconds["ours, one"]),
        "cross_encoder_vs_predict, 8 requests of 20 pairs": ratios(seconds["predict, eight"], eight_requests),
        "cross_encoder_vs_predict, the same in one call": ratios(seconds["predict, all at once"], eight_requests),
    }


def measure_beginnings(workload: Workload) -> Values:
    """A causal LM with a reranker's prompt, one request of 100 pairs: the beginning read once, and with each pair."""
    folder = write_causal_reranker(workload.folder / "causal-reranker", workload.encoder, workload.quick)
    shared, apart = CrossEncoderRanker(folder, "cpu"), CrossEncoderRanker(folder, "cpu")
    apart._scorer.beginnings = None
    library = CrossEncoder(str(folder), device="cpu")
    (given,) = _lists(1, 20 if workload.quick else 100)
    query, passages = Query(given.query), [Passage(str(n), text) for n, text in enumerate(given.passages)]
    prepared = shared.prepare(query, passages)
    windows = [Window(prepared.query, prepared.passages[n : n + 4]) for n in range(0, len(passages), 4)]  # its parts
    tokens = [sum(each.encode(window).tokens for window in windows) for each in (shared, apart)]
    seconds = time_in_turns(
        {
            "shared": lambda: [rank_windows(shared, [window]) for window in windows],
            "apart": lambda: [rank_windows(apart, [window]) for window in windows],
            "predict": lambda: library.predict(given.pairs, show_progress_bar=False),
        },
        workload.repeats,
    )
    return {
        "beginning_vs_with each pair, 100 pairs": ratios(seconds["apart"], seconds["shared"]),
        "beginning_vs_predict, 100 pairs": ratios(seconds["predict"], seconds["shared"]),
        "beginning, tokens": [tokens[1] / tokens[0]],
    }


def write_causal_reranker(folder: Path, encoder: Encoder, quick: bool = False) -> Path:
    """A random causal LM that answers one of two words to a prompt with instruction, query and document."""
    tokenizer, parts = encoder.copy_tokenizer(), folder.with_name(f"{folder.name}-parts")
    tokenizer.model_max_length, tokenizer.chat_template = 2048, _CHAT
    llama(TINY if quick else LlamaSize()).save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    vocabulary = tokenizer.get_vocab()
    transformer = Transformer(str(parts), transformer_task="text-generation")
    CrossEncoder(modules=[transformer, LogitScore(vocabulary["yes"], vocabulary["no"])], device="cpu").save_pretrained(
        str(folder)
    )
    return folder


def write_bert(folder: Path, encoder: Encoder, quick: bool = False) -> Path:
    """A random cross-encoder over the default encoder's vocabulary, of the size of ms-marco-MiniLM-L6."""
    torch.manual_seed(0)
    tokenizer = encoder.copy_tokenizer()
    tokenizer.model_max_length = 512
    hidden, layers, heads = (64, 2, 2) if quick else (384, 6, 12)
    size: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": 4 * hidden}
    size |= {"num_hidden_layers": layers, "num_attention_heads": heads, "num_labels": 1}
    config = BertConfig(vocab_size=len(tokenizer), **size)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _request(given: _List) -> RankRequest:
    passages = (Passage(f"d{place}", text) for place, text in enumerate(given.passages))
    return RankRequest(Query(given.query), tuple(map(Candidate, passages)), (Step(_MODEL, Single(1000)),))


def _lists(n: int, passages: int, seed: int = 0) -> list[_List]:
    rng = np.random.default_rng(seed)
    words = _WORDS.split()

    def text(length: int) -> str:
        return " ".join(rng.choice(words, length))

    def length() -> int:
        return int(np.clip(rng.lognormal(np.log(_MEDIAN_WORDS), _SIGMA), _LEAST_WORDS, _MOST_WORDS))

    return [_List(text(6), [text(length()) for _ in range(passages)]) for _ in range(n)]
