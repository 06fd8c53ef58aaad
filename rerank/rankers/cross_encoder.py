"""Cross-encoder: scores each passage by a model that reads the query and this one passage (Nogueira and Cho 2019).

The model is any that sentence-transformers' `CrossEncoder` loads; it scores as `CrossEncoder.predict` does. Prompt,
chat template, token ids, activation and truncation come from the checkpoint's files, as the library reads them. What
a model's files do not state comes from a profile, see `prompted_pairs`.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from rerank.checkpoints.adapters import complete_transformer
from rerank.checkpoints.cross_encoder_files import check_cross_encoder, profile_hint, relevant_label
from rerank.checkpoints.load_errors import loading
from rerank.checkpoints.manifest import model_id
from rerank.checkpoints.settings_files import base_folder, read_modules
from rerank.checkpoints.weights import weight_files
from rerank.config import Precision
from rerank.errors import CheckpointError, InvalidRequest
from rerank.models.batches import GPU_BATCH_TOKENS, batches_by_length
from rerank.models.linear_layers import use_float8
from rerank.models.llama_bidirectional import LlamaBidirectionalForSequenceClassification
from rerank.models.loading import pick_device, readable_positions
from rerank.models.memory import check_fits, fitting_tokens, keep_in_memory, translate_out_of_memory
from rerank.models.native_folders import native_folder
from rerank.models.precision import compute_in, pick_precision, uses_autocast, weights_dtype
from rerank.profiles import PairPrompt
from rerank.prompting.sanitize import markup_divider
from rerank.prompting.tokens import beginning, ending, first_tokens
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.prompted_pairs import Pair, PromptedScorer
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking, with_text
from rerank.util.combining import nfc
from rerank.util.files import sha256_of_files

#: Largest number of passages in a window.
_MOST_PASSAGES = 1000
#: Least number of tokens that must be left for the query, and for the passage.
_LEAST_PASSAGE_TOKENS = 16
#: Number of tokens in a batch of pairs on a CPU; other requests run between batches.
_CPU_BATCH_TOKENS = 512
#: Number of tokens in the batch by which the memory of a GPU is measured.
_MEASURED_TOKENS = 2048
#: Largest number of tokens of a pair in that batch.
_MEASURED_PAIR_TOKENS = 512

#: Options of the library's rendering: lists without padding.
_UNPADDED: Mapping[str, Any] = {"text": {"padding": False}, "common": {"return_tensors": None}}
#: Keys of the library's rendering that are common to a batch; the values of all others have one entry for each pair.
_SHARED_INPUTS = ("modality", "logits_to_keep", "prompt_length")
#: Pattern for the names of weights that do not affect scores. A checkpoint may have or lack them.
_NOT_READ = r"((\w+\.)?pooler\.|(.*\.)?position_ids$)"


class PairScorer:
    """A cross-encoder: texts → rendered pairs → scores, as `CrossEncoder.predict` gives them. Threads may share it.

    Args:
        folder: folder of a model that `CrossEncoder` loads (with a classification head, or a causal LM with
            `LogitScore`), or of an adapter of such a model. For two labels, the score is the probability of "relevant".
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Attributes:
        tokenizer: the model's tokenizer.
        max_tokens: largest number of tokens in a pair.
        fewest_cut_tokens: smallest number of tokens in a pair whose passage was cut.
        cuts_query: whether rendering cuts the query to a limit of the model.
        reads_instruction: whether the chat template has a field for an instruction.
        gives_probabilities: whether the activation is a sigmoid, or the model has two labels.
        revision: SHA-256 of the weights.
        precision: number format in which the model computes.

    Raises:
        CheckpointError: the folder holds no whole cross-encoder that can be loaded without code of its publisher.
    """

    def __init__(self, folder: Path, device: str = "auto", precision: Precision = "auto") -> None:
        check_cross_encoder(folder)
        self._folder, self.device, self.cuts_query = folder, pick_device(device), False
        self._lock = threading.Lock()
        self._relevant: int | None = None
        transformers_logging.disable_progress_bar()
        with loading("cross-encoder", folder), native_folder(folder) as readable:
            self._dtype = weights_dtype(self.device, precision, width=0)
            check_fits(base := base_folder(folder), self.device, self._dtype)
            self._model = self._load(readable)
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
    def fewest_cut_tokens(self) -> int:
        return self.max_tokens

    @property
    def chat_template(self) -> str:
        """The template that positions query and passage in a prompt; empty for a model that reads the bare pair."""
        return str(self.tokenizer.chat_template or "") if self._is_chat else ""

    def render(self, query: str, passages: Sequence[str], instruction: str = "", cut: bool = True) -> list[Pair]:
        """Returns a pair for each passage, rendered by the library without padding.

        Args:
            cut: whether the library truncates pairs to `max_tokens` tokens.
        """
        if not passages:
            return []
        inputs: list[Any] = [(query, passage) for passage in passages]
        if self._is_chat:  # as messages: of a bare text that is the address of an image, the library reads the image
            inputs = [[self._message("query", query), self._message("document", passage)] for passage in passages]
        options = _UNPADDED if cut else {**_UNPADDED, "text": {"padding": False, "truncation": False, "verbose": False}}
        with self._lock:  # a tokenizer is not thread-safe
            rendered = self._model.preprocess(
                inputs, prompt=instruction or self._default_prompt, processing_kwargs=dict(options)
            )
        names = [name for name in rendered if name not in _SHARED_INPUTS]
        columns = zip(*(rendered[name] for name in names), strict=True)
        return [dict(zip(names, values, strict=True)) for values in columns]

    def room(self, query: str, instruction: str) -> tuple[int, int]:
        """Returns the largest number of tokens of query and passage together, and of the query alone.

        They are what the prompt and the instruction leave of `max_tokens`.
        """
        (empty,) = self.render(query, [""], instruction, cut=False)
        room = self.max_tokens - (len(empty["input_ids"]) - self.count(query))
        return room, room // 2

    def count(self, text: str) -> int:
        """The number of tokens in a text."""
        with self._lock:
            return len(self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])

    def token_ends(self, text: str) -> list[int]:
        """The end of each token of a text, in characters."""
        with self._lock:
            options = {"add_special_tokens": False, "truncation": False, "return_offsets_mapping": True}
            return [end for _, end in self.tokenizer(text, verbose=False, **options)["offset_mapping"]]

    @torch.inference_mode()
    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        """The scores of pairs, which are padded to the longest of them and read in one forward pass.

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
        if self._relevant is not None:  # the softmax of two labels is the sigmoid of their difference
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

    def _load(self, folder: Path) -> CrossEncoder:
        model = CrossEncoder(
            str(folder),
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
        keep_in_memory(self._model)
        transformer, tokenizer = self._transformer, self.tokenizer
        if is_classifier and (label := relevant_label(self._folder, transformer.config.to_dict())) is not None:
            self._relevant, self._model.activation_fn = label, nn.Sigmoid()
        # other templates are for conversations
        has_pair_template = all(role in self.chat_template for role in ("query", "document"))
        if is_classifier and _has_prompt(transformer) and not (has_pair_template or read_modules(self._folder)):
            raise CheckpointError(
                f"{self._folder} is a {type(transformer).__name__}, and its files do not say in which prompt it reads "
                f"query and passage; {profile_hint(self._folder, transformer.config.model_type)}add the "
                "chat_template.jinja of its training, or, if it was trained on bare pairs, save it with CrossEncoder, "
                "which writes modules.json"
            )
        if others := set(self._model.modalities) - {"text", "message"}:
            raise CheckpointError(
                f"{self._folder} reads {', '.join(map(str, others))}, and this service ranks texts only"
            )
        if tokenizer.pad_token_id is None:
            raise CheckpointError(
                f"the tokenizer of {self._folder} has no pad token, so pairs of several lengths cannot share a batch; "
                "name one of its tokens as pad_token in tokenizer_config.json"
            )
        # a decoder with a head scores the last token before the padding
        for config in (transformer.config, transformer.config.get_text_config()):
            config.pad_token_id = tokenizer.pad_token_id
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


def _has_prompt(transformer: PreTrainedModel) -> bool:
    """True for a causal LM, which is trained with prompts; encoders such as BERT's may read bare pairs."""
    model_type = transformer.config.model_type
    is_decoder = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return is_decoder or isinstance(transformer, LlamaBidirectionalForSequenceClassification)


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Pairs of a query and some passages of a window, which are scored together.

    Attributes:
        positions: positions of the passages in the window, from 0.
        tokens: number of tokens of all pairs.
        scores: position → score, for the passages scored so far; all batches of the window share it.
    """

    window: Window
    positions: tuple[int, ...]
    pairs: tuple[Pair, ...]
    tokens: int
    scores: dict[int, float]


class CrossEncoderRanker(Ranker):
    """Scores passages by a cross-encoder. Arguments and errors: see PairScorer, and PromptedScorer for a `prompt`."""

    def __init__(
        self, checkpoint: Path, device: str = "auto", precision: Precision = "auto", prompt: PairPrompt | None = None
    ) -> None:
        scorer: PairScorer | PromptedScorer
        if prompt is None:
            scorer = PairScorer(checkpoint, device, precision)
        else:
            scorer = PromptedScorer(checkpoint, prompt, device, precision)
        self._scorer = scorer
        self._divide_special_tokens = markup_divider(scorer.tokenizer)
        on_gpu = scorer.device.type == "cuda"
        self._batch_tokens = self._fitting_tokens() if on_gpu else _CPU_BATCH_TOKENS
        template = scorer.chat_template
        self.info = RankerInfo(
            kind="cross-encoder",
            model_id=model_id(checkpoint),
            model_revision=scorer.revision,
            template_sha256=hashlib.sha256(template.encode()).hexdigest() if template else "",
            max_window_size=_MOST_PASSAGES,
            score_kind=ScoreKind.POINTWISE_PROBABILITY if scorer.gives_probabilities else ScoreKind.POINTWISE,
            supports_batching=True,
            relevance="score",
            max_passage_tokens=scorer.max_tokens,
            max_window_tokens=scorer.max_tokens * _MOST_PASSAGES,
            gpu_batch_tokens=self._batch_tokens if on_gpu else 0,
            precision=scorer.precision,
            reads_instruction=scorer.reads_instruction,
        )

    def _fitting_tokens(self) -> int:
        """Largest number of tokens in a batch for which the GPU has memory."""
        (pair,) = self._scorer.render("a", ["b " * min(self._scorer.max_tokens, _MEASURED_PAIR_TOKENS)])
        pairs = [pair] * max(1, _MEASURED_TOKENS // len(pair["input_ids"]))
        tokens = sum(len(pair["input_ids"]) for pair in pairs)
        return fitting_tokens(partial(self._scorer.scores, pairs), tokens, self._scorer.device, GPU_BATCH_TOKENS)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Sanitizes the texts (divides special tokens), and cuts off the parts that are never read.

        Raises:
            InvalidRequest: the instruction leaves too little room for query and passages.
        """
        texts = {t: self._divide_special_tokens(self._read_part(t)) for t in {passage.text for passage in passages}}
        prepared = tuple(with_text(passage, texts[passage.text]) for passage in passages)
        divided = replace(
            query,
            text=self._divide_special_tokens(self._read_part(query.text)),
            instruction=self._divide_special_tokens(nfc(query.instruction)),
        )
        return PreparedTexts(self._fitting(divided, texts.values()), prepared)

    def _fitting(self, query: Query, passages: Iterable[str]) -> Query:
        """Cuts a query of more than half of a chat prompt's tokens; the library itself cuts bare pairs.

        Raises:
            InvalidRequest: the instruction leaves too little room for query and passages.
        """
        tokens, most = self._scorer.count(query.text), self._scorer.max_tokens
        room, limit = self._scorer.room(query.text, query.instruction)
        if limit < _LEAST_PASSAGE_TOKENS:
            raise InvalidRequest(
                "query.instruction",
                f"prompt and instruction take {most - room} of the {most} tokens that {self.info.model_id} reads; "
                "shorten the instruction",
                {"tokens": str(most - room), "limit": str(most)},
            )
        if tokens <= limit:
            return query
        if self._scorer.cuts_query:
            return replace(query, is_truncated=True)
        if self._scorer.chat_template:
            return replace(query, text=first_tokens(query.text, limit, self._scorer.token_ends), is_truncated=True)
        longest = max(map(self._scorer.count, passages), default=0)
        return replace(query, is_truncated=query.is_truncated or tokens + longest > room)

    def encode(self, window: Window) -> Window:
        """Renders a pair for each passage, and groups the pairs into batches of similar lengths."""
        query, texts = window.query, [passage.text for passage in window.passages]
        pairs = self._scorer.render(query.text, texts, query.instruction)
        lengths = [len(pair["input_ids"]) for pair in pairs]
        full = [position for position, length in enumerate(lengths) if length >= self._scorer.fewest_cut_tokens]
        uncut = self._scorer.render(query.text, [texts[position] for position in full], query.instruction, cut=False)
        cut = [len(pair["input_ids"]) > lengths[position] for position, pair in zip(full, uncut, strict=True)]
        truncated = tuple(position for position, is_cut in zip(full, cut, strict=True) if is_cut)
        scores = dict[int, float]()
        batches = tuple(
            PairBatch(window, tuple(rows), tuple(pairs[row] for row in rows), sum(lengths[row] for row in rows), scores)
            for rows in batches_by_length(lengths, self._batch_tokens)
        )
        return replace(window, tokens=sum(lengths), truncated=truncated, parts=batches)

    @translate_out_of_memory()
    def score(self, parts: Sequence[PairBatch]) -> list[WindowRanking | None]:
        """Scores batches of pairs, and puts the scores of a window in the order of its passages."""
        return [self._score(batch) for batch in parts]

    def _score(self, batch: PairBatch) -> WindowRanking | None:
        batch.scores.update(zip(batch.positions, self._scorer.scores(batch.pairs), strict=True))
        n = len(batch.window.passages)
        return WindowRanking(tuple(batch.scores[position] for position in range(n))) if len(batch.scores) == n else None

    def _read_part(self, text: str) -> str:
        """Cuts off the part that the model never reads: the end, or the beginning if the tokenizer truncates there."""
        part = ending if self._scorer.tokenizer.truncation_side == "left" else beginning
        return part(nfc(text), self._scorer.max_tokens, self._scorer.count)
