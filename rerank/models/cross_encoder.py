"""Loads a cross-encoder of sentence-transformers, renders pairs of texts, and scores them.

Prompt, chat template, token ids, activation and truncation come from the checkpoint's files, as the library reads
them. Batches are the caller's.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from rerank.checkpoints.cross_encoder_files import check_cross_encoder, is_causal_without_modules, relevant_label
from rerank.checkpoints.settings_files import base_folder
from rerank.config import Precision
from rerank.errors import CheckpointError
from rerank.models.adapters import complete_transformer
from rerank.models.checkpoint_errors import loading
from rerank.models.checkpoint_files import weight_files
from rerank.models.linear_layers import use_float8
from rerank.models.loading import pick_device, readable_positions
from rerank.models.memory import check_fits
from rerank.models.precision import compute_in, pick_precision, uses_autocast, weights_dtype
from rerank.models.tokenizer import load_tokenizer
from rerank.util.files import sha256_of_files

log = logging.getLogger(__name__)

#: A rendered pair: its token ids, and whatever else the tokenizer says of each of them.
Pair: TypeAlias = Mapping[str, Sequence[int]]

#: Options of the library's rendering: lists without padding.
_UNPADDED: Mapping[str, Any] = {"text": {"padding": False}, "common": {"return_tensors": None}}
#: What the library's rendering says of a batch; everything else it says of each pair.
_SHARED_INPUTS = ("modality", "logits_to_keep", "prompt_length")
#: Weights that a checkpoint may have, and scores are computed without.
_NOT_READ = r"((\w+\.)?pooler\.|(.*\.)?position_ids$)"
#: Tokens that the library reads where a causal LM's files name none.
_DEFAULT_ANSWERS = ("yes", "no")


class PairScorer:
    """A cross-encoder: texts → rendered pairs → scores, as `CrossEncoder.predict` gives them. Safe between threads.

    Args:
        folder: of a model that `CrossEncoder` loads: with a classification head, or a causal LM with `LogitScore`; or
            of an adapter of such a model. Of two labels, the score is the probability of the one named relevant.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Attributes:
        tokenizer: of the model.
        max_tokens: the longest pair, in tokens.
        reads_instruction: the chat template has a place for one.
        gives_probabilities: its activation is a sigmoid, or it has two labels.
        revision: SHA-256 of the weights.
        precision: what the model computes in.

    Raises:
        CheckpointError: the folder holds no whole cross-encoder that can be loaded without code of its publisher.
    """

    def __init__(self, folder: Path, device: str = "auto", precision: Precision = "auto") -> None:
        check_cross_encoder(folder)
        self._folder, self.device = folder, pick_device(device)
        self._lock = threading.Lock()
        self._relevant: int | None = None
        transformers_logging.disable_progress_bar()
        with loading("cross-encoder", folder):
            self._dtype = weights_dtype(self.device, precision, width=0)
            check_fits(base := base_folder(folder), self.device, self._dtype)
            if is_causal_without_modules(folder):
                _check_answers(folder, load_tokenizer(folder))
            self._model = self._load()
            self._check()
            self._features_of_all: dict[str, object] = {"modality": "message" if self._is_chat else "text"}
            if getattr(self._model[0], "transformer_task", "") == "text-generation":
                self._features_of_all["logits_to_keep"] = 1  # only the last position is read
            self._default_prompt = self._model.prompts.get(self._model.default_prompt_name or "") or None
            (plain,) = self.render("a", ["b"])
            (longest,) = self.render("a", ["b " * self.max_tokens])  # fails for some strategies of truncation
            if len(longest["input_ids"]) > self.max_tokens:
                raise CheckpointError(
                    f"{folder} does not truncate pairs to the {self.max_tokens} tokens that it reads; correct "
                    "`truncation` in its sentence_bert_config.json"
                )
            (instructed,) = self.render("a", ["b"], "c d")
            self.reads_instruction = self._is_chat and plain != instructed
            self.gives_probabilities = isinstance(self._model.activation_fn, nn.Sigmoid)
            of_adapter = sorted(folder.glob("adapter_model.*")) if base != folder else []
            self.revision = sha256_of_files([*weight_files(base), *of_adapter])
            self._autocast = False
            self.precision = pick_precision(self._transformer, precision)
            if self.precision == "float8":
                use_float8(self._transformer)
            compute_in(self._transformer, self.precision)
            self._autocast = uses_autocast(self._transformer, self.precision)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return cast(PreTrainedTokenizerBase, self._model.tokenizer)

    @property
    def chat_template(self) -> str:
        """The template that places query and passage in a prompt; empty for a model that reads the bare pair."""
        return str(self.tokenizer.chat_template or "") if self._is_chat else ""

    def render(self, query: str, passages: Sequence[str], instruction: str = "", cut: bool = True) -> list[Pair]:
        """One pair per passage, as the library renders it, without padding; `cut`: to `max_tokens`."""
        if not passages:
            return []
        inputs: list[Any] = [(query, passage) for passage in passages]
        if self._is_chat:  # as messages, because the library takes a text that is the address of an image for one
            inputs = [[self._message("query", query), self._message("document", passage)] for passage in passages]
        options = _UNPADDED if cut else {**_UNPADDED, "text": {"padding": False, "truncation": False, "verbose": False}}
        with self._lock:  # of the tokenizer, which several threads cannot share
            rendered = self._model.preprocess(
                inputs, prompt=instruction or self._default_prompt, processing_kwargs=dict(options)
            )
        names = [name for name in rendered if name not in _SHARED_INPUTS]
        columns = zip(*(rendered[name] for name in names), strict=True)
        return [dict(zip(names, values, strict=True)) for values in columns]

    def count(self, text: str) -> int:
        """Returns the number of tokens of a text."""
        with self._lock:
            return len(self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])

    def token_ends(self, text: str) -> list[int]:
        """Returns the end of each token of a text, in characters."""
        with self._lock:
            options = {"add_special_tokens": False, "truncation": False, "return_offsets_mapping": True}
            return [end for _, end in self.tokenizer(text, verbose=False, **options)["offset_mapping"]]

    @torch.inference_mode()
    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns the scores of pairs that are padded to the longest of them, in one forward pass.

        The activation is computed in float64, where probabilities near 1 still differ.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            padded = cast(Any, self.tokenizer).pad(
                {name: [pair[name] for pair in pairs] for name in pairs[0]}, return_tensors="pt"
            )
        features: dict[str, Any] = {name: tensor.to(self.device) for name, tensor in padded.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast):
            outputs = self._model({**features, **self._features_of_all})["scores"]
        if self._relevant is not None:  # the softmax of two labels is a sigmoid of their difference
            outputs = outputs[:, self._relevant] - outputs[:, 1 - self._relevant]
        activated: torch.Tensor = cast(Any, self._model).activation_fn(outputs.double())
        return [float(score) for score in activated.flatten().tolist()]

    @property
    def _transformer(self) -> Any:
        return self._model.transformers_model

    @property
    def _is_chat(self) -> bool:
        return "message" in self._model.modalities

    def _message(self, role: str, text: str) -> dict[str, object]:
        is_flat = cast(Any, self._model[0]).input_formatter.message_format == "flat"
        return {"role": role, "content": text if is_flat else [{"type": "text", "text": text}]}

    def _load(self) -> CrossEncoder:
        model = CrossEncoder(
            str(self._folder),
            device=str(self.device),
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": self._dtype},
        )
        model.eval().requires_grad_(False)
        self.max_tokens = model.max_seq_length = readable_positions(model, model.max_seq_length or 0)
        return model

    def _check(self) -> None:
        """Raises: CheckpointError if weights or tokens are missing, or the model reads something other than text."""
        is_classifier = getattr(self._model[0], "transformer_task", "") == "sequence-classification"
        task = "SEQ_CLS" if is_classifier else "CAUSAL_LM"
        cast(Any, self._model[0]).model = complete_transformer(self._transformer, self._folder, task, _NOT_READ)
        self._transformer.eval().requires_grad_(False)
        transformer, tokenizer = self._transformer, self.tokenizer
        if is_classifier and (labels := relevant_label(self._folder, transformer.config.to_dict())) is not None:
            self._relevant, self._model.activation_fn = labels, nn.Sigmoid()
        if others := set(self._model.modalities) - {"text", "message"}:
            raise CheckpointError(
                f"{self._folder} reads {', '.join(map(str, others))}, and this service ranks texts only"
            )
        if tokenizer.pad_token_id is None:
            raise CheckpointError(
                f"the tokenizer of {self._folder} has no pad token, so pairs of several lengths cannot share a batch; "
                "name one of its tokens as pad_token in tokenizer_config.json"
            )
        for config in (transformer.config, transformer.config.get_text_config()):
            config.pad_token_id = tokenizer.pad_token_id  # decoders with a head score the last token before it
        size = transformer.get_input_embeddings().num_embeddings
        answers = [module for module in self._model if isinstance(module, LogitScore)]
        ids = [
            token for answer in answers for token in (answer.true_token_id, answer.false_token_id) if token is not None
        ]
        if missing := [token for token in ids if not 0 <= token < size]:
            raise CheckpointError(
                f"{self._folder} scores by token {missing[0]}, and the model has the tokens 0 to {size - 1}; correct "
                "the config.json of its LogitScore"
            )


def _check_answers(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises: CheckpointError if a causal LM whose files name no answers lacks the default ones, or a prompt."""
    vocabulary = tokenizer.get_vocab()
    if missing := [answer for answer in _DEFAULT_ANSWERS if answer not in vocabulary]:
        raise CheckpointError(
            f"{folder} is a causal LM whose tokenizer has no token {missing[0]!r}, and no modules.json names its "
            "answer tokens; save it with CrossEncoder and a LogitScore, or serve it as `first`"
        )
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{folder} is a causal LM without a chat template that places query and document; add the "
            "chat_template.jinja of a reranker, or serve it as `first`"
        )
