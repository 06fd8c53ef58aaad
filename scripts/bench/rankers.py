"""Rankers compared with the usual implementations: `generate`, padding, logits at all positions, passages as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rerank.prompting.vector_prompts import VectorPrompts
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.pe_checkpoint import load_pe_checkpoint
from rerank.types import Window
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import PASSAGES, Workload

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

    @torch.inference_mode()
    def permutation(self, window: Window) -> tuple[int, ...]:
        """Positions of the window's passages, best first."""
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
                "one_step": _ranks(one_step, windows),
                "dynamic": _ranks(dynamic, windows),
                "generate": lambda windows=windows: list(map(published.permutation, windows)),  # type: ignore[misc]
                "text": _ranks(workload.first, windows),
            },
            workload.repeats if n == 1 else workload.few_repeats,
        )
        values[f"pe_dynamic_vs_generate, {n}"] = ratios(seconds["generate"], seconds["dynamic"])
        values[f"pe_dynamic_vs_text twin, {n}"] = ratios(seconds["text"], seconds["dynamic"])
        values[f"pe_one_step_vs_text twin, {n}"] = ratios(seconds["text"], seconds["one_step"])
        values[f"pe_dynamic_decode_vs_prefill, {n}"] = [
            _decode_ratio(dynamic, windows) for _ in range(workload.repeats)
        ]
        tokens = [
            sum(len(ranker.encode(window).prompts[0]) for window in windows) for ranker in (workload.first, dynamic)
        ]
        values[f"pe_prefill_tokens_of_text twin, {n}"] = [tokens[0] / tokens[1]]
    return values


def _decode_ratio(ranker: Ranker, windows: Sequence[Window]) -> float:
    """The time of the steps after the first choice, divided by the time of what comes before, windows read together."""
    start_s = time.perf_counter()
    rankings = rank_windows(ranker, windows)
    decode_s = rankings[0].decoded.ms / 1000
    return decode_s / (time.perf_counter() - start_s - decode_s)


def _ranks(ranker: Ranker, windows: Sequence[Window]) -> Callable[[], object]:
    return lambda: rank_windows(ranker, windows)


def _check_same_permutations(dynamic: Ranker, published: PublishedPERank, windows: Sequence[Window]) -> None:
    permutations = [ranking.permutation for ranking in rank_windows(dynamic, windows)]
    if permutations != [published.permutation(window) for window in windows]:
        raise AssertionError("dynamic decoding and generate() give different permutations; this is a bug")
