"""The device with its measured rates, the models and the texts of all sections of a proof."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, BertConfig, BertModel, PreTrainedTokenizerFast

from rerank.rankers import pe_checkpoint
from rerank.readers.candidates import read_requests
from rerank.util.files import atomic_folder
from scripts.bench.models import MISTRAL_7B, QWEN3_0_6B, SMOLLM2_135M, TINY, LlamaSize, llama, save_with_projector
from scripts.bench.proof.callers import Texts
from scripts.bench.workload import PASSAGES
from scripts.random_requests import words

#: Characters of a random passage, so that a window has some 2,000 tokens; for tiny models.
_CHARACTERS, _TINY_CHARACTERS = 450, 40
_END = "<end>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)
_SIZES = {"7B": MISTRAL_7B, "0.6B": QWEN3_0_6B, "135M": SMOLLM2_135M}


@dataclass(frozen=True)
class Proof:
    """The device, models and texts. On a CPU all models are tiny, which shows only that the proof runs.

    Attributes:
        device: cuda or cpu.
        folder: for models.
        out: for the log of a training.
        callers: a process without torch, for the callers of services.
        weights: folder of a FIRST model or another causal LM that is measured, too; None: only random weights are.
        requests: RankLLM request file with queries and passages; None: random words.
        flop_per_s: of a large matrix product, in bfloat16 on a GPU.
        bytes_per_s: that a copy within its memory reads and writes.
        sizes: of the models whose folders have no weights, as they are made on the device.
    """

    device: torch.device
    folder: Path
    out: Path
    callers: ProcessPoolExecutor
    weights: Path | None = None
    requests: Path | None = None
    flop_per_s: float = 1e12
    bytes_per_s: float = 1e10
    sizes: dict[Path, LlamaSize] = field(default_factory=dict)

    @property
    def is_tiny(self) -> bool:
        return self.device.type == "cpu"

    def measured(self) -> Proof:
        """This one with the rates of the device."""
        n, numbers = (256, 2**20) if self.is_tiny else (8192, 2**30)
        left, right = (torch.randn(n, n, device=self.device, dtype=self._dtype) for _ in "ab")
        source = torch.zeros(numbers, dtype=self._dtype, device=self.device)
        product_ms, copy_ms = self.ms(lambda: left @ right, repeats=20), self.ms(source.clone)
        return replace(self, flop_per_s=2 * n**3 / product_ms * 1000, bytes_per_s=2 * source.nbytes / copy_ms * 1000)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self.is_tiny else torch.bfloat16

    def size(self, name: str) -> LlamaSize:
        """The size of a random model: 7B, 0.6B or 135M."""
        return replace(TINY if self.is_tiny else _SIZES[name], vocabulary=len(self.tokenizer))

    @property
    def depth(self) -> int:
        """Passages of a list."""
        return PASSAGES + 10 if self.is_tiny else 100

    @cached_property
    def lists(self) -> list[Texts]:
        """Queries and passages, of lists that have enough of them."""
        count, characters = (4, _TINY_CHARACTERS) if self.is_tiny else (43, _CHARACTERS)
        if self.requests is None:
            draw = random.Random(0)

            def length() -> int:
                return draw.randint(characters // 2, characters * 3 // 2)

            return [(words(draw, 30), [words(draw, length()) for _ in range(self.depth)]) for _ in range(count)]
        found = [
            (one.query.text, [p.text for p in one.candidates[: self.depth]]) for one in read_requests(self.requests)
        ]
        if not (long := [one for one in found if len(one[1]) == self.depth]):
            raise ValueError(f"{self.requests} has no list of {self.depth} passages; give another file, or none")
        return (
            [(query, [text[:characters] for text in texts]) for query, texts in long[:count]] if self.is_tiny else long
        )

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A byte-level BPE tokenizer that was trained on the texts."""
        tokenizer, level = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel
        tokenizer.pre_tokenizer, tokenizer.decoder = level(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=8192, special_tokens=[_END], initial_alphabet=level.alphabet(), show_progress=False
        )
        tokenizer.train_from_iterator((text for query, texts in self.lists for text in (query, *texts)), trainer)
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token=_END, pad_token=_END, chat_template=_CHAT_TEMPLATE
        )

    def _save_tokenizer(self, folder: Path, tokens: int) -> None:
        self.tokenizer.model_max_length = tokens
        self.tokenizer.save_pretrained(folder)

    @cached_property
    def encoder(self) -> Path:
        """A random encoder of the default one's shape."""
        hidden, layers, heads = (64, 2, 2) if self.is_tiny else (384, 6, 12)
        sizes: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
        config = BertConfig(vocab_size=len(self.tokenizer), intermediate_size=4 * hidden, **sizes)
        with atomic_folder(self.folder / "encoder") as temporary:
            torch.manual_seed(0)
            BertModel(config).save_pretrained(temporary)
            self._save_tokenizer(temporary, 512)
        return self.folder / "encoder"

    @cached_property
    def dimension(self) -> int:
        """Of the encoder's vectors."""
        return int(BertConfig.from_pretrained(self.encoder).hidden_size)

    def checkpoint(self, name: str, size: LlamaSize, has_weights: bool = False) -> Path:
        """A random model that is FIRST, PE-Rank and generation for `encoder`.

        Args:
            has_weights: whether they are in files, in float32; otherwise `weights_on_device` makes them.
        """
        path = self.folder / name
        if not path.is_dir():
            model = llama(size, "cpu" if has_weights else "meta")
            with atomic_folder(path) as temporary:
                if has_weights:
                    save_with_projector(model, temporary, str(self.encoder), self.dimension)
                else:
                    self.sizes[path] = size
                    model.config.update({"encoder_name": str(self.encoder), "projector_type": "linear"})
                    model.config.save_pretrained(temporary)
                self._save_tokenizer(temporary, 8192)
        return path

    @contextmanager
    def weights_on_device(self) -> Iterator[None]:
        """Inside, weights of checkpoints without files are random, and made on the device where files would be read."""
        read_causal_lm, read_pe_weights = AutoModelForCausalLM.from_pretrained, pe_checkpoint.read_pe_weights

        def causal_lm(base: str, *, dtype: torch.dtype, **options: Any) -> Any:
            if (size := self.sizes.get(Path(base))) is None:
                return read_causal_lm(base, dtype=dtype, **options)
            names = ("missing_keys", "unexpected_keys", "mismatched_keys")
            return llama(size, self.device, dtype), dict.fromkeys(names, ())

        def pe_weights(folder: Path, dtype: torch.dtype) -> Any:
            if (size := self.sizes.get(folder)) is None:
                return read_pe_weights(folder, dtype)
            projector = {"projector.bias": torch.zeros(size.hidden)}
            projector["projector.weight"] = torch.randn(size.hidden, self.dimension) * 0.5
            return llama(size, self.device, dtype).state_dict() | projector, []

        with (
            patch.object(AutoModelForCausalLM, "from_pretrained", causal_lm),
            patch.object(pe_checkpoint, "read_pe_weights", pe_weights),
            patch.object(pe_checkpoint, "_check_has_model"),
        ):
            yield

    def free_memory(self) -> None:
        """Frees the GPU's memory of models that are not used any more."""
        if not self.is_tiny:
            torch._dynamo.reset()
            gc.collect()  # a compiled layer refers to itself
            torch.cuda.empty_cache()

    def ms(self, run: Callable[[], object], repeats: int = 3, warm_up: int = 1) -> float:
        """The median time until the device has finished, in milliseconds; on a CPU of one run."""
        times = []
        warm_up, repeats = (0, 1) if self.is_tiny else (warm_up, repeats)
        for _ in range(warm_up + repeats):
            start_s = time.perf_counter()
            run()
            if not self.is_tiny:
                torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - start_s))
        return median(times[warm_up:])

    def floor_ms(self, size: LlamaSize, tokens: float, flop: int = 2) -> float:
        """The time of the matrix products of `tokens`: 2 FLOP for each weight of the layers, in training 6."""
        return 1000 * tokens / self.most_tokens_per_s(size, flop)

    def most_tokens_per_s(self, size: LlamaSize, flop: int = 2) -> float:
        return self.flop_per_s / (flop * layer_weights(size))

    def read_ms(self, size: LlamaSize) -> float:
        """The time to read the weights of the layers once in bfloat16, which a written token takes at least."""
        return 1000 * 2 * layer_weights(size) / self.bytes_per_s


def layer_weights(size: LlamaSize) -> int:
    """The number of weights that every token passes, without the vocabulary."""
    layers: Any = llama(size, "meta").base_model.layers
    return sum(int(parameter.numel()) for parameter in layers.parameters())
