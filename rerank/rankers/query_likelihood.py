"""Query likelihood: scores a passage by the mean log-probability of the query's tokens after it.

Ponte and Croft (SIGIR 1998) ranked by a language model of each passage; UPR (Sachan et al., EMNLP 2022) reads the
passage with a causal LM and asks for its question. Each passage is read alone, so that its score depends on no other
passage, and before the query, so that the states of passages can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rerank.checkpoints.manifest import model_id
from rerank.config import Precision
from rerank.models.last_token import translate_out_of_memory
from rerank.models.loading import load_causal_lm, pick_device
from rerank.models.packing_check import make_last_token_reader
from rerank.models.prefixes import Continuation, read_continuations
from rerank.models.state_cache import StateCache, TokenIds
from rerank.prompting.templates import Template, check_hides_query
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import EncodedWindow, ScoreKind, Window, WindowRanking

#: Tokens of a forward pass on prompts of one query. More gain no speed, and delay requests that would overtake.
_ROW_TOKENS = 2048
_MOST_PASSAGES = 1000


class QueryLikelihoodPrompts(TextPrompts):
    """Query likelihood without its model: the prompts of passages, each followed by the query.

    Args:
        tokenizer: of the model.
        context_tokens: the most tokens of a prompt and the query.
        template: a prompt template without `{query}`, or its name or path.
        passage_tokens: the maximum number of tokens shown per passage; 0: as many as fit.

    Raises:
        CheckpointError: the chat template opens a reasoning.
        ConfigError: there is no such template, or it shows the query.
    """

    kind = "query-likelihood"
    score_kind = ScoreKind.QUERY_LOG_LIKELIHOOD
    needed_fields = ()
    max_window_size = _MOST_PASSAGES

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, context_tokens: int, template: str | Template, passage_tokens: int
    ) -> None:
        super().__init__(tokenizer, context_tokens, template, passage_tokens=passage_tokens)
        check_hides_query(self.renderer.template)
        self.max_window_tokens = context_tokens * _MOST_PASSAGES
        self._space = "" if self.renderer.prompt_end[-1:].isspace() else " "
        self.query_ids = lru_cache(maxsize=64)(self._tokenize_query)

    def encode(self, window: Window) -> EncodedWindow:
        """One prompt per passage, each followed by the query; the query's last token is not read, only predicted."""
        query_ids = self.query_ids(window.query.text)
        rendered = [
            self.renderer.prompt(replace(window, passages=(passage,)), ("1",), len(query_ids))
            for passage in window.passages
        ]
        prompts = tuple((*prompt.token_ids, *query_ids) for prompt in rendered)
        truncated = tuple(place for place, prompt in enumerate(rendered) if prompt.truncated)
        return EncodedWindow(window, prompts, sum(map(len, prompts)) - len(prompts), truncated)

    def _tokenize_query(self, text: str) -> tuple[int, ...]:
        return tuple(self.renderer.continuation(self._space + text))


class QueryLikelihoodRanker(QueryLikelihoodPrompts):
    """Scores passages by the likelihood of the query under a causal LM.

    A passage that comes again costs the query's tokens only, if the states of passages are kept. They are if the model
    packs sequences.

    Args:
        checkpoint: a folder with a causal LM, a LoRA adapter, or the name of the bundled model's base.
        template, passage_tokens: see QueryLikelihoodPrompts.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.
        state_bytes: bound on the memory for states of passages; 0: none is kept.

    Attributes:
        states: see StateKeeper.

    Raises:
        CheckpointError: the checkpoint holds no causal LM.
        ConfigError: there is no such template, or it shows the query.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str | Template = "query_likelihood",
        device: str = "auto",
        precision: Precision = "auto",
        passage_tokens: int = 0,
        state_bytes: int = 0,
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        super().__init__(lm.tokenizer, lm.context_tokens, template, passage_tokens)
        self._reader = make_last_token_reader(lm.model, lm.precision)
        self.states = StateCache(state_bytes if self._reader.batching == "packed" else 0)
        described = self.describe(model_id(checkpoint), lm.revision)
        on_accelerator = self._device.type == "cuda"
        self.info = replace(
            described, batching=self._reader.batching, on_accelerator=on_accelerator, precision=lm.precision
        )

    def encode(self, window: Window) -> EncodedWindow:
        """See QueryLikelihoodPrompts; passages whose states are kept cost the query's tokens only."""
        encoded = super().encode(window)
        if not self.states.max_bytes:
            return encoded
        query_ids = self.query_ids(window.query.text)
        prefixes = (_divided(prompt, query_ids).prefix for prompt in encoded.prompts)
        return replace(encoded, tokens=encoded.tokens - sum(len(each) for each in prefixes if each in self.states))

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Mean log-probability of the query's tokens after each passage, in nats per token."""
        scored = self._scored(windows)
        rankings = []
        for encoded in windows:
            of_window = list(islice(scored, len(encoded.prompts)))
            scores = tuple(score for score, _ in of_window)
            rankings.append(WindowRanking(scores, cached_passages=sum(was_kept for _, was_kept in of_window)))
        return rankings

    def call_between_layers(self, function: Callable[[], None]) -> None:
        """See InterruptibleRanker."""
        self._reader.between_layers = function

    def _scored(self, windows: Sequence[EncodedWindow]) -> Iterator[tuple[float, bool]]:
        """The score of each passage of all windows, and whether its state was kept."""
        for query_ids, row in _rows(self._sequences(windows)):
            targets = torch.tensor(query_ids, device=self._device).repeat(len(row))[:, None]
            log_probs = torch.log_softmax(self._read(row, len(query_ids)).float(), dim=1)  # (B · Q, vocabulary)
            scores = log_probs.gather(1, targets).view(len(row), -1).mean(dim=1).tolist()
            yield from zip(scores, (each.state is not None for each in row), strict=True)

    def _sequences(self, windows: Sequence[EncodedWindow]) -> Iterator[tuple[TokenIds, Continuation]]:
        """The tokens of the query and the sequence to read for each passage of all windows."""
        for encoded in windows:
            query_ids = self.query_ids(encoded.window.query.text)
            for prompt in encoded.prompts:
                sequence = _divided(prompt, query_ids)
                state = self.states.get(sequence.prefix) if self.states.max_bytes else None
                yield query_ids, replace(sequence, state=state)

    def _read(self, row: Sequence[Continuation], tail: int) -> torch.Tensor:
        if self.states.max_bytes:
            return read_continuations(self._reader, row, tail, self._device, self.states)
        return self._reader.read([torch.tensor(each.unread, device=self._device) for each in row], tail)


def _divided(prompt: TokenIds, query_ids: TokenIds) -> Continuation:
    """A prompt up to its last token, which with all but the last of the query predicts the query, token by token."""
    start = len(prompt) - len(query_ids) - 1
    return Continuation(prompt[:start], prompt[start:-1])


def _rows(sequences: Iterable[tuple[TokenIds, Continuation]]) -> Iterator[tuple[TokenIds, list[Continuation]]]:
    """The sequences in their order, in groups of one query, of at most _ROW_TOKENS tokens or of one sequence."""
    for query_ids, of_query in groupby(sequences, key=itemgetter(0)):
        row, tokens = list[Continuation](), 0
        for _, sequence in of_query:
            if row and tokens + len(sequence.unread) > _ROW_TOKENS:
                yield query_ids, row
                row, tokens = [], 0
            row.append(sequence)
            tokens += len(sequence.unread)
        yield query_ids, row
