"""The device with its measured rates, the models and the texts of all sections of a proof."""

from __future__ import annotations

import gc
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from rerank.commands.run import quiet_libraries
from rerank.readers.candidates import read_requests
from rerank.types import Precision
from rerank.util.files import atomic_folder
from scripts.bench.models import MISTRAL_7B, QWEN3_0_6B, SMOLLM2_135M, TINY, LlamaSize, llama, save_with_projector
from scripts.bench.proof.sections import Device, Row, failed
from scripts.random_requests import words

log = logging.getLogger(__name__)

#: Passages of a window, as published models read them.
PASSAGES = 20
#: Tokens that the tokenizer of the proof has at most, unless it is given one; characters of a random passage. A window
#: then has some 2,000 tokens.
_VOCABULARY, _CHARACTERS = 8192, 450
#: Lists and characters of a passage for tiny models.
_TINY_LISTS, _TINY_CHARACTERS = 4, 40
#: The most tokens that the models read.
_CONTEXT_TOKENS = 8192
#: Shards of published models have this size.
_SHARD_SIZE = "5GB"
_END = "<end>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)

#: A query, and the passages of its list.
Texts: TypeAlias = tuple[str, list[str]]


def attempted(what: str, measure: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yields the rows of a measurement; if it fails, a row that says why, so that others are measured nevertheless."""
    try:
        yield from measure()
    except Exception as error:
        log.exception("%s failed", what)
        yield failed(what, repr(error))


@dataclass(frozen=True)
class Proof:
    """The device, models and texts. On a CPU all models are tiny, which shows only that the proof runs.

    Attributes:
        folder: for models.
        out: for logs.
        weights: folder of a FIRST model or another causal LM that is measured, too; None: only random weights are.
        requests: RankLLM request file with queries and passages; None: random words.
        tokenizer_folder: of the random models; None: the proof makes a tokenizer for the texts.
    """

    device: Device
    folder: Path
    out: Path
    weights: Path | None = None
    requests: Path | None = None
    tokenizer_folder: Path | None = None

    @property
    def is_tiny(self) -> bool:
        return self.device.kind == "cpu"

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device.kind)

    def size(self, name: str) -> LlamaSize:
        """The size of a random model: 7B, 0.6B or 135M."""
        sizes = {"7B": MISTRAL_7B, "0.6B": QWEN3_0_6B, "135M": SMOLLM2_135M}
        return TINY if self.is_tiny else sizes[name]

    def model(self, size: LlamaSize, precision: Precision = "bfloat16") -> Any:
        return llama(size, self.torch_device, _dtype(self.device.kind, precision))

    @property
    def depth(self) -> int:
        """Passages of a list."""
        return PASSAGES + 10 if self.is_tiny else 100

    @cached_property
    def lists(self) -> list[Texts]:
        """Queries and passages, of lists that have enough of them."""
        if self.requests is None:
            draw = random.Random(0)
            count, length = (_TINY_LISTS, _TINY_CHARACTERS) if self.is_tiny else (43, _CHARACTERS)
            texts = [
                [words(draw, draw.randint(length // 2, length * 3 // 2)) for _ in range(self.depth)]
                for _ in range(count)
            ]
            return [(words(draw, 30), some) for some in texts]
        found = [
            (request.query.text, [passage.text for passage in request.candidates[: self.depth]])
            for request in read_requests(self.requests)
        ]
        if not (long := [one for one in found if len(one[1]) == self.depth]):
            raise ValueError(f"{self.requests} has no list of {self.depth} passages; give another file, or none")
        if self.is_tiny:
            return [(query, [text[:_TINY_CHARACTERS] for text in texts]) for query, texts in long[:_TINY_LISTS]]
        return long

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer_folder is None:
            return _tokenizer_for([text for query, texts in self.lists for text in (query, *texts)])
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            self.tokenizer_folder, trust_remote_code=False
        )
        return tokenizer

    def checkpoint(self, name: str, size: LlamaSize, precision: Precision = "bfloat16") -> Path:
        """A random model that is FIRST, PE-Rank and generation for `encoder`; it is written once."""
        path = self.folder / name
        if path.is_dir():
            return path
        model = self.model(replace(size, vocabulary=len(self.tokenizer)), precision)
        with atomic_folder(path) as temporary:
            dimension = self._encoder_config().hidden_size
            save_with_projector(model, temporary, str(self.encoder), dimension, max_shard_size=_SHARD_SIZE)
            self._save_tokenizer(temporary, _CONTEXT_TOKENS)
        del model
        self.free_memory()
        return path

    @cached_property
    def encoder(self) -> Path:
        """A random encoder of the default one's shape."""
        path = self.folder / "encoder"
        if not path.is_dir():
            torch.manual_seed(0)
            with atomic_folder(path) as temporary:
                BertModel(self._encoder_config()).save_pretrained(temporary)
                self._save_tokenizer(temporary, 512)
        return path

    def _encoder_config(self) -> BertConfig:
        hidden, layers, heads = (64, 2, 2) if self.is_tiny else (384, 6, 12)
        return BertConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
        )

    def _save_tokenizer(self, folder: Path, tokens: int) -> None:
        self.tokenizer.model_max_length = tokens
        self.tokenizer.save_pretrained(folder)

    def finish(self) -> None:
        """Waits for the device."""
        if not self.is_tiny:
            torch.cuda.synchronize()

    def free_memory(self) -> None:
        """Frees the GPU's memory of models that are not used any more."""
        if not self.is_tiny:
            gc.collect()  # a compiled layer refers to itself
            torch.cuda.empty_cache()

    def ms(self, run: Callable[[], object], repeats: int = 3, warm_up: int = 1) -> float:
        """The median time until the device has finished, in milliseconds."""
        times = []
        for _ in range(warm_up + (1 if self.is_tiny else repeats)):
            start_s = time.perf_counter()
            run()
            self.finish()
            times.append(1000 * (time.perf_counter() - start_s))
        return median(times[warm_up:])

    def floor_ms(self, weights: int, tokens: float, passes: int = 2) -> float:
        """The time of the matrix products of `tokens`: 2 FLOP for each weight of the layers, in training 6."""
        return 1000 * passes * weights * tokens / self.device.flop_per_s

    def most_tokens_per_s(self, weights: int, passes: int = 2) -> float:
        return self.device.flop_per_s / (passes * weights)

    def read_ms(self, weights: int) -> float:
        """The time to read the weights of the layers once in bfloat16, which a written token takes at least."""
        return 1000 * 2 * weights / self.device.bytes_per_s


def prove(section: str, device: Device, paths: Mapping[str, Path]) -> Iterator[Row]:
    """Runs a function of a proof, MODULE:FUNCTION, and frees the memory that it used."""
    proof = Proof(device, **paths)
    module, _, function = section.partition(":")
    yield from getattr(import_module(module), function)(proof)
    torch._dynamo.reset()
    proof.free_memory()


def measure_device() -> Iterator[Device]:
    """The rates of the GPU, or of the CPU without one."""
    quiet_libraries()
    disable_progress_bar()
    on_gpu = torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    proof = Proof(Device(kind, "", "", 1.0, 1.0), Path(), Path())
    n, numbers = (8192, 2**30) if on_gpu else (256, 2**20)
    dtype = _dtype(kind, "bfloat16")
    left, right = (torch.randn(n, n, device=kind, dtype=dtype) for _ in "ab")
    product_ms = proof.ms(lambda: left @ right, repeats=20)
    source = torch.zeros(numbers, dtype=dtype, device=kind)
    copy_ms = proof.ms(source.clone)
    yield Device(
        kind,
        torch.cuda.get_device_name() if on_gpu else "CPU: tiny models, no proof",
        f"torch {torch.__version__}, transformers {transformers.__version__}",
        flop_per_s=2 * n**3 / product_ms * 1000,
        bytes_per_s=2 * source.nbytes / copy_ms * 1000,
    )


def _dtype(device_kind: str, precision: Precision) -> torch.dtype:
    return torch.float32 if device_kind == "cpu" or precision == "float32" else torch.bfloat16


def layer_weights(model: Any) -> int:
    """The number of weights that every token passes, without the vocabulary."""
    return sum(parameter.numel() for parameter in model.base_model.layers.parameters())


def _tokenizer_for(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that was trained on these texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, pad_token=_END, chat_template=_CHAT_TEMPLATE
    )
