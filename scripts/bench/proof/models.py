"""Models with random weights, which are made on the device where files would be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, BertConfig, BertModel, PreTrainedTokenizerFast

from rerank.rankers import pe_checkpoint
from rerank.util.files import atomic_folder
from scripts.bench.models import MISTRAL_7B, QWEN3_0_6B, SMOLLM2_135M, TINY, LlamaSize, llama, save_with_projector
from scripts.bench.proof.callers import Texts

_END = "<|endoftext|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)
#: By the name of a model. "compared" is read by a CPU in a second, with layers as wide as small language models have.
_SIZES = {"7B": MISTRAL_7B, "0.6B": QWEN3_0_6B, "135M": SMOLLM2_135M, "compared": LlamaSize(1024, 3072, 8, 16, 8)}


@dataclass(frozen=True)
class RandomModels:
    """An encoder, and causal LMs that are FIRST, PE-Rank, E2Rank and generation for it. On a CPU all are tiny.

    Attributes:
        folder: for their files.
        device: cuda or cpu.
        lists: their texts train the tokenizer.
        without_weights: folders of causal LMs whose weights `weights_on_device` makes, with their sizes.
    """

    folder: Path
    device: torch.device
    lists: Sequence[Texts]
    without_weights: dict[Path, LlamaSize] = field(default_factory=dict)

    @property
    def are_tiny(self) -> bool:
        return self.device.type == "cpu"

    def size(self, name: str) -> LlamaSize:
        """The size of a causal LM: 7B, 0.6B, 135M or compared."""
        return replace(TINY if self.are_tiny else _SIZES[name], vocabulary=len(self._tokenizer))

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerFast:
        """A byte-level BPE tokenizer."""
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
        self._tokenizer.model_max_length = tokens
        self._tokenizer.save_pretrained(folder)

    @cached_property
    def encoder(self) -> Path:
        """The folder of a random encoder of the default one's shape."""
        hidden, layers, heads = (64, 2, 2) if self.are_tiny else (384, 6, 12)
        sizes: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
        config = BertConfig(vocab_size=len(self._tokenizer), intermediate_size=4 * hidden, **sizes)
        with atomic_folder(self.folder / "encoder") as temporary:
            torch.manual_seed(0)
            BertModel(config).save_pretrained(temporary)
            self._save_tokenizer(temporary, 512)
        return self.folder / "encoder"

    @cached_property
    def _dimension(self) -> int:
        return int(BertConfig.from_pretrained(self.encoder).hidden_size)

    def causal_lm(self, name: str) -> Path:
        """The folder of a causal LM. Only "compared" has its weights in files, in float32."""
        path, size = self.folder / name, self.size(name)
        if path.is_dir():
            return path
        with atomic_folder(path) as temporary:
            if name == "compared":
                save_with_projector(llama(size), temporary, str(self.encoder), self._dimension)
            else:
                config = llama(size, "meta").config
                config.update({"encoder_name": str(self.encoder), "projector_type": "linear"})
                config.save_pretrained(temporary)
                self.without_weights[path] = size
            self._save_tokenizer(temporary, 8192)
        return path

    @contextmanager
    def weights_on_device(self) -> Iterator[None]:
        """Inside, models without weights in files get random ones."""
        read_causal_lm, read_pe_weights = AutoModelForCausalLM.from_pretrained, pe_checkpoint.read_pe_weights

        def causal_lm(base: str, *, dtype: torch.dtype, **options: Any) -> Any:
            if (size := self.without_weights.get(Path(base))) is None:
                return read_causal_lm(base, dtype=dtype, **options)
            names = ("missing_keys", "unexpected_keys", "mismatched_keys")
            return llama(size, self.device, dtype), dict.fromkeys(names, ())

        def pe_weights(folder: Path, dtype: torch.dtype) -> Any:
            if (size := self.without_weights.get(folder)) is None:
                return read_pe_weights(folder, dtype)
            projector = {"projector.bias": torch.zeros(size.hidden)}
            projector["projector.weight"] = torch.randn(size.hidden, self._dimension) * 0.5
            return llama(size, self.device, dtype).state_dict() | projector, []

        with (
            patch.object(AutoModelForCausalLM, "from_pretrained", causal_lm),
            patch.object(pe_checkpoint, "read_pe_weights", pe_weights),
            patch.object(pe_checkpoint, "_check_has_model"),
        ):
            yield


def layer_weights(size: LlamaSize) -> int:
    """The number of weights that every token passes, without the vocabulary."""
    layers: Any = llama(size, "meta").base_model.layers
    return sum(int(parameter.numel()) for parameter in layers.parameters())
