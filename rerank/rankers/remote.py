"""Ranks by models in inference servers: sends prompts, and reads log-probabilities, texts or vectors.

A server is checked before its first use, and whenever it comes back. It must serve the model under this name, split
text into the same tokens, and return a log-probability for every identifier. It must also pass the self-test, which
compares golden scores if the checkpoint has some.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rerank.config.served import InferenceServerSettings
from rerank.errors import CheckpointError, ConfigError, ModelServerUnfit, RerankError, SelfTestFailed
from rerank.inference_servers.api import APIS
from rerank.inference_servers.server import NoAnswer
from rerank.models.encoder import Encoder
from rerank.models.tokenizer import backend_tokenizer_of
from rerank.prompting.tokens import beginning
from rerank.rankers.base import Ranker
from rerank.rankers.e2rank import E2RankPrompts, by_cosine
from rerank.rankers.first import FirstPrompts
from rerank.rankers.generation import GenerationPrompts
from rerank.rankers.remote_server import RemoteRanker
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import Passage, PreparedTexts, Query, Vector, Window, WindowRanking
from rerank.util.combining import nfc

log = logging.getLogger(__name__)

#: A text with characters that tokenizers split differently: brackets, line ends, spaces, digits, accents, bytes.
_SAMPLE = "Passage [A]: 27 °C, naïve robins' «nest» 🦟\n\n[2] > [1]\tend"
#: Smallest cosine of two vectors of the same text that different number formats can explain.
_LEAST_COSINE = 0.99
#: HTTP statuses by which a server says that it does not offer a method.
_NOT_OFFERED = {"404", "405", "501"}


P = TypeVar("P", bound=TextPrompts)


@dataclass(frozen=True)
class RemoteModel:
    """A configured model that runs in inference servers.

    Attributes:
        name: the model's name in the configuration.
        served_by: the servers.
        api_key: the key that is sent to the servers; empty: no key is sent.
        tokenizer: the model's tokenizer.
        revision: SHA-256 of the local checkpoint, whose golden scores the servers must give; empty without one.
        self_test: tests a ranker; raises SelfTestFailed if it does not pass.
    """

    name: str
    served_by: InferenceServerSettings
    api_key: str
    tokenizer: PreTrainedTokenizerBase
    revision: str
    self_test: Callable[[Ranker], None]


class _RemotePromptRanker(RemoteRanker, Generic[P]):
    """Sends the windows of a ranker to its server.

    Args:
        model: the model and its servers.
        make_prompts: makes the renderer of prompts from the largest number of tokens of a prompt and its answer. The
            number is the tokenizer's, or that of the server if it is smaller.
    """

    def __init__(self, model: RemoteModel, make_prompts: Callable[[int], P]) -> None:
        self._model = model
        self._api = APIS[model.served_by.kind](model.served_by.model)
        self._make_prompts = make_prompts
        self._context_tokens = model.tokenizer.model_max_length
        self._prompts = make_prompts(self._context_tokens)
        info = self._prompts.describe(model.served_by.model, model.revision)
        self.info = replace(info, max_in_flight=model.served_by.max_in_flight)
        super().__init__(model.name, model.served_by, model.api_key)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        return self._prompts.prepare(query, passages)

    def encode(self, window: Window) -> Window:
        return self._prompts.encode(window)

    async def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        return [await self._watched.call(partial(self.score_checked, window)) for window in parts]

    @abstractmethod
    async def score_checked(self, window: Window) -> WindowRanking:
        """Returns the ranking of a window by a server that has passed its check, or is being checked.

        Raises: NoAnswer; ModelServerUnfit if the answer lacks what the ranking needs.
        """

    @abstractmethod
    async def _check_answers(self) -> None:
        """Raises: NoAnswer, ModelServerUnfit if the server's answers lack what the ranking needs."""

    async def _check(self) -> None:
        """Checks the server, see the head of this module. Raises: NoAnswer, ModelServerUnfit, SelfTestFailed."""
        await self._check_name_and_length()
        await self._check_tokenizer()
        await self._check_answers()
        on_server = _SelfTestAdapter(self._for_self_test(), asyncio.get_running_loop())
        try:
            await asyncio.to_thread(self._model.self_test, on_server)
        except SelfTestFailed as error:
            if isinstance(error.__cause__, NoAnswer | RerankError):
                raise error.__cause__ from error
            raise SelfTestFailed(f"{self._server.url}: {error}") from error
        finally:
            on_server.stop()

    def _for_self_test(self) -> Self:
        return self

    async def _check_name_and_length(self) -> None:
        name = self._model.served_by.model
        cards = {card.name: card for card in await self._request("/v1/models", self._api.models)}
        if name not in cards:
            raise self._unfit(
                f"serves {', '.join(cards) or 'no model'}, not {name}; correct served_by.model, or the "
                "name that the server was started with"
            )
        length = cards[name].max_tokens
        if length is not None and length < self._context_tokens:
            self._context_tokens = length
            self._prompts = self._make_prompts(length)
            limits = self._prompts.describe(name, self._model.revision)
            self.info = replace(
                self.info, max_passage_tokens=limits.max_passage_tokens, max_window_tokens=limits.max_window_tokens
            )

    async def _check_tokenizer(self) -> None:
        """Compares the tokens of a text, if the server can tokenize. Raises: NoAnswer, ModelServerUnfit."""
        try:
            found = await self._request(self._api.tokenize(_SAMPLE), self._api.tokens)
        except ModelServerUnfit as error:
            if error.metadata.get("status") not in _NOT_OFFERED:
                raise
            log.info(
                "model %s: %s does not tokenise, so its tokens are not compared", self._model.name, self._server.url
            )
            return
        expected = self._model.tokenizer(_SAMPLE, add_special_tokens=False, verbose=False)["input_ids"]
        if found != expected:
            raise self._unfit(
                f"splits {_SAMPLE!r} into the tokens {found}, and the tokenizer of model "
                f"{self._model.name} into {expected}; set `path` to the tokenizer of the served model"
            )


class RemoteFirst(_RemotePromptRanker[FirstPrompts]):
    """Ranks by FIRST, by the log-probabilities of a served model.

    Args:
        model: the model and its servers.
        make_prompts: see _RemotePromptRanker.
    """

    def __init__(self, model: RemoteModel, make_prompts: Callable[[int], FirstPrompts]) -> None:
        super().__init__(model, make_prompts)
        limit = min(self.info.max_window_size, self._api.most_token_ids)
        self.info = replace(self.info, max_window_size=limit)

    async def score_checked(self, window: Window) -> WindowRanking:
        """Ranks a window by the log-probabilities over its identifiers; see `FirstPrompts.ranking`."""
        (prompt,) = window.prompts
        row = await self._row(prompt, len(window.passages))
        return self._prompts.ranking(window, torch.tensor(row, dtype=torch.float32))

    async def _check_answers(self) -> None:
        """Requests the log-probabilities of all identifiers of the largest window."""
        (prompt,) = self._prompts.encode(Window(Query("N/A"), (Passage("0", "N/A"), Passage("1", "N/A")))).prompts
        await self._row(prompt, self.info.max_window_size)

    async def _row(self, prompt: Sequence[int], n: int) -> list[float]:
        """Returns the log-probability of each of n identifiers after a prompt."""
        token_ids = self._prompts.identifiers.token_ids[:n]
        log_probs = await self._request(self._api.score(prompt, token_ids), self._api.log_probs)
        row = [log_probs[token_id] for token_id in token_ids if token_id in log_probs]
        if len(row) < len(token_ids):
            raise self._unfit(
                f"answered with the log-probabilities of {len(row)} of {len(token_ids)} identifiers; {self._api.lacks}"
            )
        if not all(map(math.isfinite, row)):
            raise self._unfit(
                "answered with a log-probability that is not finite; the weights or the number format of "
                "its model are broken"
            )
        return row


class RemoteGeneration(_RemotePromptRanker[GenerationPrompts]):
    """Ranks by the permutation that a served model generates.

    Raises:
        ConfigError: the style asks for orders of exact length, and the servers cannot set a minimum number of tokens.
    """

    def __init__(self, model: RemoteModel, make_prompts: Callable[[int], GenerationPrompts]) -> None:
        super().__init__(model, make_prompts)
        if self._prompts.fewest_tokens(2) and not self._api.has_min_tokens:
            raise ConfigError(
                f"model {model.name}: order_tokens: exact has no effect on servers of kind {model.served_by.kind}, "
                "which let a model end early; set prompt: {order_tokens: free}"
            )

    async def score_checked(self, window: Window) -> WindowRanking:
        n = len(window.passages)
        post = self._api.generate(window.prompts[0], self._prompts.new_tokens(n), self._prompts.fewest_tokens(n))
        return self._prompts.ranking(window, self._prompts.answer(await self._request(post, self._api.text)))

    async def _check_answers(self) -> None:
        """Checks nothing, because the self-test generates."""

    def _for_self_test(self) -> Self:
        other = copy.copy(self)
        other._prompts = self._prompts.with_little_thinking()
        return other


class RemoteE2Rank(_RemotePromptRanker[E2RankPrompts]):
    """Ranks by E2Rank. A served model computes the vectors of prompts, and of passages without a vector.

    Args:
        model, make_prompts: see _RemotePromptRanker.
        end_token: the token that ends each passage.
        encoder: the service's encoder if it has the same weights, so that passages may already have vectors; None: the
            server encodes all passages.

    Raises:
        CheckpointError: the tokenizer does not have the end token.
    """

    def __init__(
        self, model: RemoteModel, make_prompts: Callable[[int], E2RankPrompts], end_token: str, encoder: Encoder | None
    ) -> None:
        super().__init__(model, make_prompts)
        self._encoder = encoder
        if (end := model.tokenizer.get_vocab().get(end_token)) is None:
            raise CheckpointError(f"the tokenizer of model {model.name} does not have the token {end_token!r}")
        self._end, self._splitter = end, backend_tokenizer_of(model.tokenizer)
        self.info = replace(self.info, needs_vectors=encoder is not None)

    def encode(self, window: Window) -> Window:
        """Renders the prompt, and tokenizes the passages without a vector."""
        encoded = self._prompts.encode(window)
        missing = [passage.text for passage in window.passages if not self._has_vector(passage)]
        most = self._context_tokens - 1
        texts = [
            beginning(nfc(text), most, lambda part: len(self._splitter.encode(part, add_special_tokens=False).ids))
            for text in missing
        ]
        ids = [tuple(encoding.ids[:most]) for encoding in self._splitter.encode_batch(texts, add_special_tokens=False)]
        prompts = (*encoded.prompts, *((*tokens, self._end) for tokens in ids))
        return replace(encoded, prompts=prompts, tokens=sum(map(len, prompts)))

    async def score_checked(self, window: Window) -> WindowRanking:
        """Ranks a window by cosines; see `by_cosine`."""
        of_prompt, *of_texts = await self._vectors(window.prompts)
        new = iter(of_texts)
        passages = window.passages
        return by_cosine(
            of_prompt,
            [passage if self._has_vector(passage) else replace(passage, vector=next(new)) for passage in passages],
        )

    def _has_vector(self, passage: Passage) -> bool:
        return self._encoder is not None and passage.vector is not None

    async def _check_answers(self) -> None:
        """Compares the server's vector of a text with the encoder's, if it has the same weights."""
        window = Window(Query("N/A", instruction="N/A"), (Passage("0", _SAMPLE),))
        _, found = await self._vectors(self.encode(window).prompts)
        if self._encoder is None:
            return
        (expected,) = await asyncio.to_thread(self._encoder.encode_passages, [_SAMPLE])
        if found.shape != expected.shape or float(found @ expected) < _LEAST_COSINE:
            raise self._unfit(
                "gives another vector of a text than the encoder of the service; serve the same weights, "
                "with pooling LAST"
            )

    async def _vectors(self, inputs: Sequence[Sequence[int]]) -> list[Vector]:
        """Returns the (D,) unit vector of each input, which is a list of token ids."""
        vectors = np.array(await self._request(self._api.embed(inputs), self._api.vectors), dtype=np.float32)
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True) if vectors.ndim == 2 else np.zeros(1)
        if len(vectors) != len(inputs) or not (np.isfinite(lengths) & (lengths > 0)).all():
            raise self._unfit(
                f"answered with {len(vectors)} vectors for {len(inputs)} texts, or with some that are not "
                "finite; run vLLM with --runner pooling, and the weights in a number format that they fit"
            )
        return list(vectors / lengths)


class _SelfTestAdapter(Ranker):
    """Lets the self-test, which runs on a thread, use a ranker whose server is checked on the event loop."""

    def __init__(self, ranker: _RemotePromptRanker[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.info, self._ranker = ranker.info, ranker
        self._loop = loop
        self._scores: Future[list[WindowRanking]] | None = None
        self._has_stopped = False

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        return self._ranker.prepare(query, passages)

    def encode(self, window: Window) -> Window:
        return self._ranker.encode(window)

    def score(self, parts: Sequence[Window]) -> list[WindowRanking]:
        self._scores = asyncio.run_coroutine_threadsafe(self._score_all(parts), self._loop)
        if self._has_stopped:
            self._scores.cancel()
        return self._scores.result()

    def stop(self) -> None:
        """Ends the self-test, which would otherwise go on after the check is cancelled."""
        self._has_stopped = True
        if self._scores is not None:
            self._scores.cancel()

    async def _score_all(self, windows: Sequence[Window]) -> list[WindowRanking]:
        return list(await asyncio.gather(*map(self._ranker.score_checked, windows)))
