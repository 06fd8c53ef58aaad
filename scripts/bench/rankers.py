"""Rankers compared with the usual implementations: `generate`, padding, logits at all positions, passages as text; and
E2Rank with FIRST and PE-Rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rerank.config import EncoderConfig
from rerank.models.encoder import Encoder
from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.e2rank import E2RankRanker
from rerank.rankers.pe_checkpoint import load_pe_checkpoint
from rerank.types import Window
from scripts.bench.workload import DEPTH, PASSAGES, Values, Workload, ratios, time_in_turns, with_vectors

#: Tokens of a permutation "[a] > [b] > …" of 20 letters: three per identifier and one between two.
PERMUTATION_TOKENS = 79


@torch.inference_mode()
def measure_first(workload: Workload) -> Values:
    """FIRST on one window, compared with generating and with logits at all positions."""
    model: Any = AutoModelForCausalLM.from_pretrained(workload.checkpoint, trust_remote_code=False)
    prompt = torch.tensor([list(workload.first.encode(workload.windows[0]).prompts[0])])
    mask = torch.ones_like(prompt)

    def generate(tokens: int) -> object:
        return model.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )

    seconds = time_in_turns(
        {
            "ours": lambda: rank_windows(workload.first, workload.windows[:1]),
            "generating the permutation": lambda: generate(PERMUTATION_TOKENS),
            "generate one token": lambda: generate(1),
            "all-position logits": lambda: model(input_ids=prompt, attention_mask=mask),
        },
        workload.repeats,
    )
    ours = seconds.pop("ours")
    return {f"first_vs_{name}": ratios(other, ours) for name, other in seconds.items()}


class PublishedPERank:
    """PE-Rank as published: passages are additional tokens, and `generate` may choose among those that remain."""

    def __init__(self, workload: Workload) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(workload.checkpoint, trust_remote_code=False)
        self._vocabulary = self._model.config.vocab_size
        self._model.resize_token_embeddings(self._vocabulary + PASSAGES, mean_resizing=False)
        checkpoint = load_pe_checkpoint(workload.checkpoint, workload.encoder, torch.device("cpu"), None)
        self._projector = checkpoint.projector
        self._prompts = VectorPrompts(checkpoint.template, checkpoint.tokenizer, checkpoint.own_vocabulary, 64)

    def permutations(self, windows: Sequence[Window]) -> list[tuple[int, ...]]:
        """Positions of the windows' passages, best first."""
        return [self._permutation(window) for window in windows]

    @torch.inference_mode()
    def _permutation(self, window: Window) -> tuple[int, ...]:
        vectors = torch.stack([torch.from_numpy(p.vector) for p in window.passages if p.vector is not None])
        projected, first_id = self._projector(vectors), self._vocabulary
        for embeddings in (self._model.get_input_embeddings(), self._model.get_output_embeddings()):
            embeddings.weight[first_id:] = projected
        passage_ids = range(first_id, first_id + PASSAGES)
        remaining = iter(passage_ids)
        slots = self._prompts.token_ids(window.query, window.passages)
        prompt = torch.tensor([[next(remaining) if token < 0 else token for token in slots]])
        generated = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=PASSAGES,
            do_sample=False,
            pad_token_id=0,
            prefix_allowed_tokens_fn=lambda _, ids: sorted(set(passage_ids) - set(ids[len(slots) :].tolist())),
        )
        return tuple(token - first_id for token in generated[0, len(slots) :].tolist())


def measure_pe_rank(workload: Workload) -> Values:
    """Both decodings of PE-Rank, compared with its published implementation and with FIRST on the passages' texts."""
    one_step, dynamic, published = workload.pe_rank(), workload.pe_rank(dynamic=True), PublishedPERank(workload)
    values: Values = {}
    for n in (1, 8):
        windows = workload.windows[:n]
        _check_same_permutations(dynamic, published, windows)
        seconds = time_in_turns(
            {
                "one_step": partial(rank_windows, one_step, windows),
                "dynamic": partial(rank_windows, dynamic, windows),
                "generate": partial(published.permutations, windows),
                "text": partial(rank_windows, workload.first, windows),
            },
            workload.repeats if n == 1 else workload.few_repeats,
        )
        values[f"pe_dynamic_vs_generate, {n}"] = ratios(seconds["generate"], seconds["dynamic"])
        values[f"pe_dynamic_vs_text twin, {n}"] = ratios(seconds["text"], seconds["dynamic"])
        values[f"pe_one_step_vs_text twin, {n}"] = ratios(seconds["text"], seconds["one_step"])
    return values


def _check_same_permutations(dynamic: Ranker, published: PublishedPERank, windows: Sequence[Window]) -> None:
    permutations = [ranking.permutation for ranking in rank_windows(dynamic, windows)]
    if permutations != published.permutations(windows):
        raise AssertionError("dynamic decoding and generate() give different permutations; this is a bug")


def measure_e2rank(workload: Workload) -> Values:
    """One random checkpoint as all three, over lists of 20 and of 100 passages.

    E2Rank has vectors of an index or new texts; FIRST reads windows of 20 from the end, PE-Rank one window.
    """
    encoder = Encoder(EncoderConfig(name=str(workload.checkpoint), pooling="lasttoken"), "cpu")
    e2rank = E2RankRanker(encoder, True, "e2rank", "Order these documents:", PASSAGES, "float32")
    pe_rank, values = workload.pe_rank(), Values()
    for n in (PASSAGES, DEPTH):
        window = workload.window(workload.lists[0], n)
        of_index = with_vectors(window, encoder.id.dimension)
        vectors = with_vectors(window, workload.encoder.id.dimension)
        seconds = time_in_turns(
            {
                "e2rank": partial(rank, e2rank, of_index),
                "new texts": partial(rank, e2rank, window),
                "first": partial(_slide, workload.first, window),
                "pe_rank": partial(rank, pe_rank, vectors),
            },
            workload.few_repeats,
        )
        of_e2rank = seconds.pop("e2rank")
        values |= {f"e2rank_vs_{name}, {n}": ratios(other, of_e2rank) for name, other in seconds.items()}
    return values


def rank(ranker: Ranker, window: Window) -> object:
    """Prepares and ranks a window."""
    prepared = ranker.prepare(window.query, window.passages)
    return rank_windows(ranker, [Window(prepared.query, prepared.passages)])


def _slide(ranker: Ranker, window: Window) -> None:
    """Windows of 20 passages with stride 10 from the end, one after the other, as sliding windows run."""
    for start in range(len(window.passages) - PASSAGES, -1, -PASSAGES // 2):
        rank(ranker, replace(window, passages=window.passages[start : start + PASSAGES]))
