"""Proof of a device: every ranker against its CPU results, windows together against alone, speed, training, memory.

Weights are random, but for those of a folder that is given. Seconds are elapsed time, after the device has finished.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from rerank.config import EncoderConfig, FusionModel, Precision
from rerank.models.encoder import Encoder
from rerank.models.identifier_head import IdentifierHead
from rerank.models.last_token import LastTokenReader
from rerank.models.precision import weights_dtype
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.e2rank import E2RankRanker
from rerank.rankers.first import FirstRanker
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import Passage, Query, Window
from scripts.bench.models import MISTRAL_7B, QWEN3_0_6B, TINY, LlamaSize, llama, save_with_projector
from scripts.bench.timing import Values, ratios, time_in_turns

Floats: TypeAlias = npt.NDArray[np.float64]

#: Largest difference of a score, in standard deviations of the window's scores on the CPU in float32.
TOLERANCES: dict[Precision, float] = {"float32": 1e-2, "bfloat16": 0.5}
#: Lengths of eight windows, as shares of the longest; published windows have some 2,000 tokens.
_LENGTHS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.4)
#: Passages of a window, and tokens of an order of them that is written.
PASSAGES, _ORDER_TOKENS = 20, 79


@dataclass(frozen=True)
class Proof:
    """The device, and the models that are measured on it; on a CPU they are tiny.

    Attributes:
        folder: for the checkpoint.
        weights: folder of a causal LM whose orders are compared too; None: only random weights are.
    """

    device: torch.device
    folder: Path
    weights: Path | None = None

    @property
    def is_tiny(self) -> bool:
        return self.device.type != "cuda"

    @property
    def sizes(self) -> dict[str, LlamaSize]:
        return {"tiny": TINY} if self.is_tiny else {"0.6B": QWEN3_0_6B, "7B": MISTRAL_7B}

    @property
    def small(self) -> LlamaSize:
        return next(iter(self.sizes.values()))

    @cached_property
    def checkpoint(self) -> Path:
        """A random model that is FIRST, PE-Rank, E2Rank and the encoder of all."""
        path = self.folder / "model"
        save_with_projector(llama(self.small), path, str(path), self.small.hidden)
        byte_tokenizer().save_pretrained(path)
        return path

    @cached_property
    def texts(self) -> list[Window]:
        """Two windows of random text, one of them shorter."""
        draw, characters = random.Random(0), 8 if self.is_tiny else 90

        def text() -> str:
            return "".join(draw.choices("etaoinshrdlu ", k=characters))

        return [
            Window(Query(text()), tuple(Passage(f"d{place}", text()) for place in range(n)))
            for n in (PASSAGES, PASSAGES // 2)
        ]

    def model(self, size: LlamaSize, precision: Precision = "bfloat16") -> Any:
        return llama(size, self.device, weights_dtype(self.device, precision, size.hidden))

    def token_ids(self, size: LlamaSize) -> list[torch.Tensor]:
        """Random token ids of eight windows, the longest first."""
        lengths = [int(share * (40 if self.is_tiny else 2000)) for share in _LENGTHS]
        return [torch.randint(size.vocabulary, (length,), device=self.device) for length in lengths]

    def seconds(self, variants: Mapping[str, Callable[[], object]]) -> Values:
        """Elapsed seconds of each variant, until the device has finished."""

        def finished(run: Callable[[], object]) -> None:
            run()
            if not self.is_tiny:
                torch.cuda.synchronize()

        timed = {name: partial(finished, run) for name, run in variants.items()}
        return time_in_turns(timed, 1 if self.is_tiny else 5, time.perf_counter)

    def peak_gib(self, run: Callable[[], object]) -> Values:
        """The most memory of the GPU while it runs, with all that is loaded; nothing without one, where it runs too."""
        if self.is_tiny:
            run()
            return {}
        torch.cuda.reset_peak_memory_stats()
        run()
        return {"peak GiB": [torch.cuda.max_memory_allocated() / 2**30]}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", model_max_length=8192
    )


def _encoder(proof: Proof, device: str) -> Encoder:
    return Encoder(EncoderConfig(name=str(proof.checkpoint), pooling="lasttoken"), device)


#: Loads a ranker on a device. The fusion computes in the precision that its encoder picks.
RANKERS: dict[str, Callable[[Proof, str, Precision], Ranker]] = {
    "FIRST": lambda proof, device, precision: FirstRanker(
        proof.weights or proof.checkpoint, "first", device=device, precision=precision
    ),
    "PE-Rank": lambda proof, device, precision: PERankRanker(
        proof.checkpoint, _encoder(proof, device), device, "one_step", "pe_rank_text", precision=precision
    ),
    "E2Rank": lambda proof, device, precision: E2RankRanker(
        _encoder(proof, device), False, "e2rank", "Order these:", PASSAGES, precision
    ),
    "fusion": lambda proof, device, _: FusionRanker(
        FusionModel(name="fusion", ranker="fusion", sparse_weight=0.0), _encoder(proof, device), None
    ),
}


def measure_agreement(proof: Proof) -> Values:
    """Scores on the device against those of the CPU, and windows that are read together against alone.

    Raises:
        AssertionError: a difference is larger than the tolerance of the precision.
    """
    values: Values = {}
    for name, load in RANKERS.items():
        on_cpu = load(proof, "cpu", "float32")
        expected = [_scores(on_cpu, [window])[0] for window in proof.texts]
        precisions: Iterable[Precision] = ("bfloat16",) if name == "fusion" else TOLERANCES
        for precision in precisions:
            figures = _compare(proof, load(proof, proof.device.type, precision), expected, TOLERANCES[precision])
            values |= {f"{name}, {precision}: {figure}": found for figure, found in figures.items()}
    return values


def _compare(proof: Proof, ranker: Ranker, expected: list[Floats], tolerance: float) -> Values:
    rank_both = partial(_scores, ranker, proof.texts)
    together, alone = rank_both(), [_scores(ranker, [window])[0] for window in proof.texts]
    differences = {"the CPU": _difference(together, expected), "windows alone": _difference(together, alone)}
    for other, difference in differences.items():
        assert difference <= tolerance, f"{ranker.info.kind}: {difference:.2g} deviations from {other}, not {tolerance}"
    return {
        **{f"deviations from {other}": [difference] for other, difference in differences.items()},
        "ms of two windows": [1000 * second for second in proof.seconds({"": rank_both})[""]],
        **proof.peak_gib(rank_both),
    }


def _scores(ranker: Ranker, windows: Sequence[Window]) -> list[Floats]:
    prepared = [ranker.prepare(window.query, window.passages) for window in windows]
    rankings = rank_windows(ranker, [Window(item.query, item.passages) for item in prepared])
    return [np.array(ranking.scores) for ranking in rankings]


def _difference(scores: list[Floats], others: list[Floats]) -> float:
    """The largest difference of a score, up to a constant in its window, in standard deviations of the window."""
    shifts = [(ours - theirs, theirs.std()) for ours, theirs in zip(scores, others, strict=True)]
    return max(float(np.abs(shift - shift.mean()).max() / deviation) for shift, deviation in shifts)


def measure_matrices(proof: Proof) -> Values:
    """The rate of a matrix product, in TFLOP/s: the device does no linear layer faster."""
    n = 256 if proof.is_tiny else 8192
    left, right = (
        torch.randn(n, n, device=proof.device, dtype=weights_dtype(proof.device, "bfloat16", n)) for _ in "ab"
    )
    seconds = proof.seconds({"": lambda: left @ right})[""]
    return {"matrix product, TFLOP/s": [2 * n**3 / second / 1e12 for second in seconds]}


def measure_first(proof: Proof) -> Values:
    """FIRST on a window and on eight, against generating, logits at all positions, padding, and the floor."""
    rate = 1e12 * max(measure_matrices(proof)["matrix product, TFLOP/s"])
    values: Values = {}
    for name, size in proof.sizes.items():
        values |= {f"{name}: {figure}": seconds for figure, seconds in _measure_size(proof, size, rate).items()}
    return values


@torch.inference_mode()
def _measure_size(proof: Proof, size: LlamaSize, rate: float) -> Values:
    """`rate` is that of a matrix product in FLOP/s; the floor is 2 x parameters x tokens at that rate."""
    model, windows = proof.model(size), proof.token_ids(size)
    parameters = parameter_count(model)
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    rows, masks = padded(windows), padded([torch.ones_like(window) for window in windows])
    options = {"max_new_tokens": 4 if proof.is_tiny else _ORDER_TOKENS, "do_sample": False, "pad_token_id": 0}
    one = {"input_ids": rows[:1], "attention_mask": masks[:1]}
    others = proof.seconds(
        {
            "generating the permutation / FIRST": lambda: model.generate(**one, **options),
            "logits at all positions / FIRST": lambda: model(**one, use_cache=False),
            "eight windows padded / together": lambda: model(rows, masks, use_cache=False, logits_to_keep=1),
        }
    )
    model.set_output_embeddings(IdentifierHead(model.get_output_embeddings(), range(PASSAGES)).to(model.device))
    reader = LastTokenReader(model)
    ours = proof.seconds({"FIRST": lambda: reader.read(windows[:1]), "together": lambda: reader.read(windows)})
    tokens = {"FIRST": len(windows[0]), "together": sum(map(len, windows))}
    return {
        "FIRST, ms": [1000 * second for second in ours["FIRST"]],
        **{name: ratios(seconds, ours[name.split()[-1]]) for name, seconds in others.items()},
        **{f"{name} / floor": [s * rate / (2 * parameters * tokens[name]) for s in ours[name]] for name in ours},
    }


def parameter_count(model: Any) -> int:
    """Number of weights that every token passes, without the vocabulary."""
    return sum(parameter.numel() for parameter in model.model.layers.parameters())
