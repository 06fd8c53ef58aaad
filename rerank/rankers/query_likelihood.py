"""Query likelihood: scores a passage by the mean log-probability of the query's tokens after it.

Ponte and Croft (SIGIR 1998) ranked by a language model of each passage; UPR (Sachan et al., EMNLP 2022) reads the
passage with a causal LM and asks for its question. Each passage is read alone, so that its score depends on no other
passage.
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
from rerank.models.state_cache import TokenIds
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

    Args:
        checkpoint: a folder with a causal LM, a LoRA adapter, or the name of the bundled model's base.
        template, passage_tokens: see QueryLikelihoodPrompts.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: see `rerank.config.Precision`.

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
    ) -> None:
        self._device = pick_device(device)
        lm = load_causal_lm(checkpoint, self._device, precision)
        super().__init__(lm.tokenizer, lm.context_tokens, template, passage_tokens)
        self._reader = make_last_token_reader(lm.model, lm.precision)
        described = self.describe(model_id(checkpoint), lm.revision)
        on_accelerator = self._device.type == "cuda"
        self.info = replace(
            described, batching=self._reader.batching, on_accelerator=on_accelerator, precision=lm.precision
        )

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Mean log-probability of the query's tokens after each passage, in nats per token."""
        scores = self._scores(windows)
        return [WindowRanking(tuple(islice(scores, len(encoded.prompts)))) for encoded in windows]

    def call_between_layers(self, function: Callable[[], None]) -> None:
        """See InterruptibleRanker."""
        self._reader.between_layers = function

    def _scores(self, windows: Sequence[EncodedWindow]) -> Iterator[float]:
        """The score of each passage of all windows."""
        for query_ids, row in _rows(self._sequences(windows)):
            targets = torch.tensor(query_ids, device=self._device).repeat(len(row))[:, None]
            outputs = self._reader.read([torch.tensor(each, device=self._device) for each in row], len(query_ids))
            log_probs = torch.log_softmax(outputs.float(), dim=1)  # (B · Q, vocabulary)
            yield from log_probs.gather(1, targets).view(len(row), -1).mean(dim=1).tolist()

    def _sequences(self, windows: Sequence[EncodedWindow]) -> Iterator[tuple[TokenIds, TokenIds]]:
        """The tokens of the query, and the sequence that predicts them, for each passage of all windows."""
        for encoded in windows:
            query_ids = self.query_ids(encoded.window.query.text)
            for prompt in encoded.prompts:
                yield query_ids, prompt[:-1]


def _rows(sequences: Iterable[tuple[TokenIds, TokenIds]]) -> Iterator[tuple[TokenIds, list[TokenIds]]]:
    """The sequences in their order, in groups of one query, of at most _ROW_TOKENS tokens or of one sequence."""
    for query_ids, of_query in groupby(sequences, key=itemgetter(0)):
        row, tokens = list[TokenIds](), 0
        for _, sequence in of_query:
            if row and tokens + len(sequence) > _ROW_TOKENS:
                yield query_ids, row
                row, tokens = [], 0
            row.append(sequence)
            tokens += len(sequence)
        yield query_ids, row
