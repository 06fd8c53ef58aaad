"""Scores pairs by a model whose files do not state its prompt: the prompt and the answer come from a profile.

A causal LM scores by the logits of its answers, a classifier by its one label, and an encoder-decoder by the logits of
the first token that it writes (monoT5, Nogueira et al., arXiv 2003.06713).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rerank.checkpoints.settings_files import architecture_in, base_folder, read_settings
from rerank.config import Precision
from rerank.errors import CheckpointError
from rerank.models.last_token import IdentifierHead, LastTokenReader
from rerank.models.llama_bidirectional import LlamaBidirectionalForSequenceClassification
from rerank.models.loading import CausalLM, load_causal_lm, pick_device
from rerank.models.precision import compute_in, uses_autocast
from rerank.profiles import PairPrompt
from rerank.prompting.tokens import PromptTokenizer
from rerank.rankers.layer_heads import load_layer

#: A rendered pair: the name of an input of the model, such as input_ids → its value for each token.
Pair: TypeAlias = Mapping[str, Sequence[int]]
#: B sequences of token ids → (B, 1 or 2) logits.
_Read: TypeAlias = Callable[[Sequence[torch.Tensor]], torch.Tensor]

#: A field of a prompt, such as {query} or {bos}.
_FIELD = re.compile(r"\{(\w+)\}")
#: A field whose text differs between requests.
_TEXTS = re.compile(r"\{(query|passage|instruction)\}")
#: Name of an activation in a profile → the function.
_ACTIVATIONS: Mapping[str, nn.Module] = {
    "identity": nn.Identity(),
    "sigmoid": nn.Sigmoid(),
    "log-sigmoid": nn.LogSigmoid(),
}


class _Shared(NamedTuple):
    """The parts that all prompts of a query have in common.

    Attributes:
        texts: field → text of the query or the instruction.
        pieces: token ids of each piece of the prompt; empty for the piece with the passage.
    """

    texts: Mapping[str, str]
    pieces: Sequence[Sequence[int]]


class PairRenderer:
    """Renders pairs as the prompts of a profile. Threads may share it.

    Args:
        tokenizer: the model's tokenizer.
        prompt: the profile's prompt, with its publisher's words.
        context_tokens: largest number of tokens that the model reads.

    Attributes: see `rerank.rankers.cross_encoder.PairScorer`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: PairPrompt, context_tokens: int) -> None:
        self._prompt, self.tokenizer = prompt, tokenizer
        self.tokenizer.truncation_side = "right"
        self._tokens = PromptTokenizer(tokenizer)
        special = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token}
        self._special = {name: str(token) for name, token in special.items() if token}
        self._fixed = [None if _TEXTS.search(piece) else self._ids(piece) for piece in prompt.pieces]
        self._passage_piece = next(number for number, piece in enumerate(prompt.pieces) if "{passage}" in piece)
        uncounted = sum(len(self._fixed[number] or ()) for number in prompt.uncounted)
        self.max_tokens = min(context_tokens, (prompt.max_tokens or context_tokens) + uncounted)
        self.fewest_cut_tokens = min(self.max_tokens, prompt.passage_tokens or self.max_tokens)
        self.cuts_query = prompt.query_tokens is not None
        self._query_tokens = min(self.max_tokens * 3 // 4, prompt.query_tokens or self.max_tokens)
        self.reads_instruction = any("{instruction}" in piece for piece in prompt.pieces)
        instructions = (prompt.with_instruction, prompt.without_instruction) if self.reads_instruction else ()
        self.chat_template = "".join((*prompt.pieces, *instructions))

    def render(self, query: str, passages: Sequence[str], instruction: str = "", cut: bool = True) -> list[Pair]:
        """Returns a prompt for each passage; with `cut`, passages are cut so that prompts have at most `max_tokens`."""
        shared = self._shared(query, instruction)
        return [{"input_ids": self._rendered(shared, passage, cut)} for passage in passages]

    def room(self, query: str, instruction: str) -> tuple[int, int]:
        """Returns the largest number of tokens of query and passage together, and of the query alone.

        They are what the rest of the prompt leaves of `max_tokens`.
        """
        empty = self._shared("", instruction)
        room = self.max_tokens - len(self._rendered(empty, "", cut=False))
        if not self.cuts_query:
            return room, room // 2
        index = next(index for index, piece in enumerate(self._prompt.pieces) if "{query}" in piece)
        return room, self._query_tokens - len(empty.pieces[index])

    def count(self, text: str) -> int:
        """The number of tokens in a text."""
        return len(self._tokens.ids(text))

    def token_ends(self, text: str) -> list[int]:
        """The end of each token of a text, in characters."""
        return list(self._tokens.ends(text))

    def _shared(self, query: str, instruction: str) -> _Shared:
        """Tokenizes the parts that all prompts of a query have in common, and cuts the piece with the query."""
        form = self._prompt.with_instruction if instruction else self._prompt.without_instruction
        texts = {
            "query": query.strip() if self._prompt.strips_texts else query,
            "instruction": form.replace("{instruction}", instruction),
        }
        pieces = list[Sequence[int]]()
        for number, (piece, fixed) in enumerate(zip(self._prompt.pieces, self._fixed, strict=True)):
            ids = [] if number == self._passage_piece else self._ids(piece, texts) if fixed is None else fixed
            pieces.append(ids[: self._query_tokens] if self.cuts_query and "{query}" in piece else ids)
        return _Shared(texts, pieces)

    def _rendered(self, shared: _Shared, passage: str, cut: bool) -> list[int]:
        text = passage.strip() if self._prompt.strips_texts else passage
        ids = self._ids(self._prompt.pieces[self._passage_piece], {**shared.texts, "passage": text})
        if cut:
            room = max(0, self.max_tokens - sum(map(len, shared.pieces)))
            ids = ids[: min(room, self._prompt.passage_tokens or room)]
        pieces = [*shared.pieces]
        pieces[self._passage_piece] = ids
        return [token for piece in pieces for token in piece]

    def _ids(self, piece: str, texts: Mapping[str, str] | None = None) -> list[int]:
        values = {**self._special, **(texts or {})}
        return self._tokens.ids(_FIELD.sub(lambda match: values.get(match[1], ""), piece))


class PromptedScorer(PairRenderer):
    """Renders pairs as the prompts of a profile, and scores them. Threads may share it.

    Args:
        folder: folder of a causal LM, a classifier with one label, an encoder-decoder, or an adapter.
        prompt: the profile's prompt, with its publisher's words.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Attributes: see `rerank.rankers.cross_encoder.PairScorer`.

    Raises:
        CheckpointError: the folder holds no such model, the model has several labels, or its tokenizer lacks an answer.
    """

    def __init__(self, folder: Path, prompt: PairPrompt, device: str = "auto", precision: Precision = "auto") -> None:
        self.device = pick_device(device)
        lm, self._read = _load(folder, prompt, self.device, precision)
        super().__init__(lm.tokenizer, prompt, lm.context_tokens)
        self.gives_probabilities = prompt.activation == "sigmoid"
        self.precision, self.revision = lm.precision, lm.revision

    @torch.inference_mode()
    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        """The scores of prompts. The activation is computed in float64, where probabilities near 1 still differ."""
        logits = self._read([torch.tensor(pair["input_ids"], device=self.device) for pair in pairs]).double()
        outputs = logits[:, 0] - logits[:, 1] if logits.shape[1] == 2 else logits[:, 0]
        activated = _ACTIVATIONS[self._prompt.activation](outputs / self._prompt.divisor)
        return [float(score) for score in activated.tolist()]


def _load(folder: Path, prompt: PairPrompt, device: torch.device, precision: Precision) -> tuple[CausalLM, _Read]:
    architecture = architecture_in(read_settings(base_folder(folder) / "config.json"))
    if prompt.layer is not None:
        return load_layer(folder, prompt.layer, device, precision)
    if architecture.endswith("ForSequenceClassification"):
        return _load_classifier(folder, device, precision)
    if not prompt.answers:
        raise CheckpointError(f"{folder} is a {architecture}, and this profile is of a classifier; use its own profile")
    is_causal = architecture.endswith("ForCausalLM")
    lm = load_causal_lm(folder, device, precision, AutoModelForCausalLM if is_causal else AutoModelForSeq2SeqLM)
    head = IdentifierHead(lm.model.get_output_embeddings(), _answer_ids(folder, lm.tokenizer, prompt.answers))
    lm.model.set_output_embeddings(head.to(device))
    compute_in(lm.model, lm.precision)
    autocast = uses_autocast(lm.model, lm.precision)
    return lm, LastTokenReader(lm.model, autocast).read if is_causal else PaddedReader(lm.model, autocast).read


def _load_classifier(folder: Path, device: torch.device, precision: Precision) -> tuple[CausalLM, _Read]:
    lm = load_causal_lm(folder, device, precision, AutoModelForSequenceClassification)
    head = cast(Any, lm.model).score
    if (labels := head.out_features) != 1:
        raise CheckpointError(f"{folder} has a head for {labels} labels, and this profile scores by one")
    compute_in(lm.model, lm.precision)
    autocast = uses_autocast(lm.model, lm.precision)
    if isinstance(lm.model, LlamaBidirectionalForSequenceClassification):
        return lm, PaddedReader(lm.model, autocast).read
    row, reader = IdentifierHead(head, [0]).to(device), LastTokenReader(cast(Any, lm.model).base_model, autocast)
    return lm, lambda sequences: row(reader.read(sequences))


def _answer_ids(folder: Path, tokenizer: PreTrainedTokenizerBase, answers: Sequence[str]) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    if missing := [answer for answer in answers if answer not in vocabulary]:
        raise CheckpointError(
            f"{folder} has no token {missing[0]!r}, by which this profile scores; use the profile of the model, and "
            "the tokenizer that it was trained with"
        )
    return [vocabulary[answer] for answer in answers]


class PaddedReader:
    """Reads padded sequences by a model; an encoder-decoder returns the logits of its first output token."""

    def __init__(self, model: PreTrainedModel, autocast: bool) -> None:
        self._model, self._autocast = model, autocast

    def read(self, sequences: Sequence[torch.Tensor]) -> torch.Tensor:
        """B sequences of token ids → (B, answers) logits."""
        padded = pad_sequence(list(sequences), batch_first=True)  # (B, T)
        lengths = torch.tensor([len(sequence) for sequence in sequences], device=padded.device)
        inputs = {
            "input_ids": padded,
            "attention_mask": (torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]).long(),
        }
        if self._model.config.is_encoder_decoder:
            start = cast(Any, self._model.config).decoder_start_token_id
            inputs["decoder_input_ids"] = padded.new_full((len(padded), 1), start)
        with torch.autocast(padded.device.type, torch.bfloat16, enabled=self._autocast):
            logits = cast(torch.Tensor, self._model(**inputs).logits)
        return logits[:, 0] if logits.ndim == 3 else logits
