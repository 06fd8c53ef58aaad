"""LiT5 (Tamber et al., arXiv 2312.16098): an encoder-decoder writes the order of a window.

The encoder reads each passage alone, with the query and the passage's number. The decoder attends to the states of all
passages together, which is fusion in the decoder (FiD, Izacard and Grave, EACL 2021), and writes "[2] > [1] > …".
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from rerank.checkpoints.manifest import model_id
from rerank.config import Precision
from rerank.models.loading import load_causal_lm, pick_device
from rerank.models.memory import translate_out_of_memory
from rerank.models.precision import compute_in, uses_autocast
from rerank.profiles import FusionInDecoderPrompt
from rerank.prompting.sanitize import Sanitizer
from rerank.prompting.style import PromptStyle
from rerank.prompting.tokens import PromptTokenizer, beginning, first_tokens
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.permutations import parse_permutation
from rerank.types import DecodeCost, Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking

#: Largest number of passages in a window. No model was trained to order more in one answer.
_MOST_PASSAGES = 100


class FusionInDecoderRanker(Ranker):
    """Ranks windows by the permutation that an encoder-decoder generates greedily.

    Args:
        checkpoint: a folder with a T5 model.
        prompt: the prompt for one passage, with its limit in tokens.
        style: the style of the passages' texts in prompts.
        window_size: largest number of passages in a window. As in the authors' program, the largest number of tokens of
            an answer is the number of characters in the order of such a window.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

    Raises:
        CheckpointError: the checkpoint holds no encoder-decoder.
    """

    def __init__(
        self,
        checkpoint: Path,
        prompt: FusionInDecoderPrompt,
        style: PromptStyle,
        window_size: int,
        device: str = "auto",
        precision: Precision = "auto",
    ) -> None:
        self._device, self._prompt, self._style = pick_device(device), prompt, style
        lm = load_causal_lm(checkpoint, self._device, precision, AutoModelForSeq2SeqLM)
        compute_in(lm.model, lm.precision)
        self._model: Any = lm.model
        self._autocast = uses_autocast(lm.model, lm.precision)
        self._tokenizer, self._tokens = lm.tokenizer, PromptTokenizer(lm.tokenizer)
        self._sanitize = Sanitizer(lm.tokenizer, [prompt.text], style.guards)
        self._max_tokens = min(prompt.max_tokens, lm.context_tokens)
        self._query_tokens = (self._max_tokens - len(self._ids(Query(""), 1, ""))) // 2
        self._answer_tokens = len(" > ".join(f"[{number}]" for number in range(1, window_size + 1)))
        self.info = RankerInfo(
            kind="fusion-in-decoder",
            model_id=model_id(checkpoint),
            model_revision=lm.revision,
            template_sha256=hashlib.sha256(prompt.text.encode()).hexdigest(),
            prompt=str(style),
            max_window_size=min(window_size, _MOST_PASSAGES),
            score_kind=ScoreKind.RANK,
            reads_blank=style.blank_passages == "read",
            max_passage_tokens=self._max_tokens,
            precision=lm.precision,
        )

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Sanitizes the texts, and cuts the query to half of the room of a prompt, so that passages keep some."""
        text = self._sanitize(query.text)
        cut = first_tokens(text, self._query_tokens, self._tokens.ends)
        query = replace(query, text=cut, is_truncated=query.is_truncated or cut != text)
        return PreparedTexts(query, tuple(replace(passage, text=self._shown(passage)) for passage in passages))

    def _shown(self, passage: Passage) -> str:
        """Returns the text of a passage as the prompt shows it, without the end that no prompt shows."""

        def shown(text: str) -> str:
            return self._sanitize(self._style.passage_text(text, passage.title))

        return shown(beginning(passage.text, self._max_tokens, lambda text: len(self._tokens.ids(shown(text)))))

    def encode(self, window: Window) -> Window:
        """Renders a prompt for each passage. A prompt that is too long loses its end, as in the authors' program."""
        texts = enumerate(window.passages, start=1)
        whole = [self._ids(window.query, number, passage.text) for number, passage in texts]
        end, most = self._tokenizer.eos_token_id, self._max_tokens - 1
        prompts = tuple((*ids[:most], end) for ids in whole)
        truncated = tuple(index for index, ids in enumerate(whole) if len(ids) > most)
        tokens = sum(map(len, prompts)) + self._answer_tokens
        return replace(window, prompts=prompts, tokens=tokens, truncated=truncated)

    def _ids(self, query: Query, number: int, passage: str) -> list[int]:
        return self._tokens.ids(self._prompt.text.format(query=query.text, number=number, passage=passage))

    @translate_out_of_memory()
    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        """Ranks windows one by one, by minus the rank of each passage in the model's text."""
        return [self._ranking(window) for window in parts]

    def _ranking(self, window: Window) -> WindowRanking:
        written, cost = self._answer(window.prompts)
        numbers = [str(number) for number in range(1, len(window.passages) + 1)]
        parsed = parse_permutation(written, numbers)
        rank_of = {index: rank for rank, index in enumerate(parsed.permutation)}
        scores = tuple(float(-rank_of[index]) for index in range(len(numbers)))
        return WindowRanking(scores, repairs=parsed.repairs, decode_cost=cost)

    @torch.inference_mode()
    def _answer(self, prompts: Sequence[Sequence[int]]) -> tuple[str, DecodeCost]:
        """Returns what the model writes, up to its end token or the token budget, and its cost."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            states = self._states([torch.tensor(prompt, device=self._device) for prompt in prompts])
            start_s = time.perf_counter()
            (ids,) = self._model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=states),
                attention_mask=torch.ones(states.shape[:2], dtype=torch.long, device=self._device),
                max_length=self._answer_tokens,
                do_sample=False,
                num_beams=1,
            )
        cost = DecodeCost(len(ids) - 1, (time.perf_counter() - start_s) * 1000)  # without the start token
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)), cost

    def _states(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """N prompts of T_i tokens → (1, ΣT_i, D) states of the encoder, without the states of the padding."""
        padded = pad_sequence(list(prompts), batch_first=True)  # (N, T)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        is_read = torch.arange(padded.shape[1], device=self._device) < lengths[:, None]
        states: torch.Tensor = self._model.get_encoder()(input_ids=padded, attention_mask=is_read.long())[0]
        return states[is_read][None]
