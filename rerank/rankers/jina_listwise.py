"""jina-reranker-v3 and v3.5 (Wang et al., arXiv 2509.25085): a list in one prompt, with a vector for each passage.

The transformer's states are read at a token after each passage, and at one after the query at the end. A projector maps
each state to a vector, and the score is the cosine of passage and query. Long lists are read in blocks. The query's
vectors of all blocks are averaged, weighted by the best score of each block; passages have the vectors of their block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cosine_similarity
from transformers import AutoModel

from rerank.checkpoints.manifest import model_id
from rerank.checkpoints.weights import read_weights
from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.models.last_token import LastTokenReader, read_plainly
from rerank.models.loading import load_causal_lm, pick_device
from rerank.models.memory import translate_out_of_memory
from rerank.models.precision import compute_in, uses_autocast
from rerank.models.projector import load_relu_projector
from rerank.profiles import Blocks
from rerank.prompting.style import Guard
from rerank.prompting.templates import Template
from rerank.rankers.base import Ranker
from rerank.rankers.self_test import scores_alone
from rerank.rankers.text_prompts import TextPrompts
from rerank.types import ScoreKind, Window, WindowRanking


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive passages of a window in one prompt.

    Attributes:
        number: number of the block in the window, from 0.
        count: number of blocks of the window.
        tokens: number of tokens of the prompt.
        positions: positions in the prompt, from 0, of the tokens whose states become vectors: one for each of the n
            passages, then one for the query.
        vectors: number → (n + 1, D) vectors, for the blocks read so far; all blocks of the window share it.
    """

    window: Window
    number: int
    count: int
    token_ids: tuple[int, ...]
    tokens: int
    positions: tuple[int, ...]
    vectors: dict[int, torch.Tensor]


class JinaListwiseRanker(TextPrompts, Ranker):
    """Ranks windows by the cosines of projected states of a causal transformer.

    Args:
        checkpoint: a folder with the transformer and the projector.
        template: the prompt with its chat markup, with a special token after the passage and after the query.
        blocks: limits of query and passages in tokens, and of blocks in passages.
        device, precision: see `rerank.rankers.first.FirstRanker`.

    Raises:
        CheckpointError: the folder lacks weights or has unknown ones, or its tokenizer lacks a token of the prompt.
        ConfigError: the style of the prompt does not guard against texts that contain these tokens.
    """

    kind = "jina-listwise"
    score_kind = ScoreKind.WINDOW_SCORE
    max_window_size = 1000

    def __init__(
        self, checkpoint: Path, template: Template, blocks: Blocks, device: str = "auto", precision: Precision = "auto"
    ) -> None:
        if Guard.MARKUP not in template.style.guards:
            raise ConfigError("scores are read at special tokens, which texts could hold; add markup to prompt: guards")
        self._device, self._blocks = pick_device(device), blocks
        lm = load_causal_lm(checkpoint, self._device, precision, AutoModel, may_have=r"projector\.")
        self._projector = load_relu_projector(read_weights(checkpoint, "projector.")).to(self._device)
        self.max_window_tokens = self.max_window_size * min(blocks.passage_tokens, lm.context_tokens)
        self._context_tokens, self._names = lm.context_tokens, [str(number) for number in range(blocks.passages)]
        limits = (0, blocks.passage_tokens, False, blocks.query_tokens)
        super().__init__(lm.tokenizer, lm.context_tokens, replace(template, chat_markup=False), *limits)
        self._passage_token = self._token_after("{candidate}", template.body)
        self._query_token = self._token_after("{query}", template.suffix)
        self.info = replace(self.describe(model_id(checkpoint), lm.revision), precision=lm.precision)
        self._read: Callable[..., list[torch.Tensor]] = partial(read_plainly, lm.model)
        self.reference = scores_alone(self, self.max_window_size)
        compute_in(lm.model, lm.precision)
        self._reader = LastTokenReader(lm.model, uses_autocast(lm.model, lm.precision))
        self._read = self._reader.read_at
        sizes = (self._reader.supports_batching, self._reader.gpu_batch_tokens)
        self.info = replace(self.info, supports_batching=sizes[0], gpu_batch_tokens=sizes[1], supports_preemption=True)

    def _token_after(self, field: str, part: str) -> int:
        """Returns the id of the special token that follows a field in a part of the template."""
        token = next(iter(self.renderer.prompt_tokenizer.ids(part.partition(field)[2])), -1)
        if token not in self._tokenizer.added_tokens_decoder:
            raise CheckpointError(f"the tokenizer has no token for what follows {field} in the prompt; use its own")
        return token

    def encode(self, window: Window) -> Window:
        """Divides the window into blocks, and renders the prompt of each up to the token after the query."""
        blocks, truncated, start = list[Block](), list[int](), 0
        sizes, vectors = self._sizes(window), dict[int, torch.Tensor]()
        for number, size in enumerate(sizes):
            prompt = self.renderer.prompt(replace(window, passages=window.passages[start : start + size]), self._names)
            ids = tuple(prompt.token_ids[: prompt.token_ids.index(self._query_token) + 1])
            positions = tuple(position for position, token in enumerate(ids) if token == self._passage_token)
            blocks.append(Block(window, number, len(sizes), ids, len(ids), (*positions, len(ids) - 1), vectors))
            truncated += [start + index for index in prompt.truncated]
            start += size
        prompts, tokens = tuple(block.token_ids for block in blocks), sum(block.tokens for block in blocks)
        return replace(window, prompts=prompts, tokens=tokens, truncated=tuple(truncated), parts=tuple(blocks))

    def _sizes(self, window: Window) -> list[int]:
        """Returns the number of passages of each block.

        As in the publisher's program, a block ends when a passage of `passage_tokens` tokens would not fit.
        """
        longest, most = self._blocks.passage_tokens, self._blocks.passages
        sizes, room = list[int](), 0
        for passage in window.passages:
            if not sizes or sizes[-1] == most or room <= longest:
                sizes.append(0)
                room = self._context_tokens - 2 * len(self.renderer.token_ends(window.query.text))
            sizes[-1] += 1
            room -= min(len(self.renderer.tokens_of(passage).ids), longest)
        return sizes

    @translate_out_of_memory()
    @torch.inference_mode()
    def score(self, parts: Sequence[Block]) -> list[WindowRanking | None]:
        """Reads blocks, and ranks the windows whose last block is among them."""
        prompts = [torch.tensor(block.token_ids, device=self._device) for block in parts]
        rankings = list[WindowRanking | None]()
        for block, states in zip(parts, self._read(prompts, [block.positions for block in parts]), strict=True):
            block.vectors[block.number] = self._projector(states.float()).cpu()
            is_last = len(block.vectors) == block.count
            rankings.append(WindowRanking(block_scores(block.vectors)) if is_last else None)
        return rankings

    def call_between_layers(self, function: Callable[[], None]) -> None:
        self._reader.between_layers = function


def block_scores(vectors: Mapping[int, torch.Tensor]) -> tuple[float, ...]:
    """Returns the cosines of passages with the average of the blocks' query vectors, weighted by their best scores."""
    blocks = [vectors[number] for number in sorted(vectors)]
    best = torch.stack([1 + cosine_similarity(block[:-1], block[-1:]).amax() for block in blocks])
    # the average times a factor, on which cosines do not depend
    query = best @ torch.stack([block[-1] for block in blocks])
    return tuple(cosine_similarity(torch.cat([block[:-1] for block in blocks]), query[None]).tolist())
