"""Long documents: divides them into overlapping chunks, and ranks each document by its best chunk.

A model that scores each passage alone reads all chunks, and a document gets the score of its best chunk: MaxP of Dai
and Callan (SIGIR 2019). Any other model reads one chunk of each document, the one that shares most words with the
query, because further chunks would displace other documents from its windows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from rerank.engine.request import Request
from rerank.models.encoder import Encoder
from rerank.rankers.base import RankerInfo
from rerank.reranking.unordered import shared_words
from rerank.types import Passage, RankedCandidate, Ranking, ScoreKind, SlicedWork, Trace, with_title

#: The index of the first character of a chunk, and the index after its last one.
Span: TypeAlias = tuple[int, int]

#: Smallest number of tokens in a chunk, even if a model reads fewer.
_MIN_TOKENS = 16
#: Largest number of tokens in a chunk if the model reads one chunk of each document: in a longer chunk, the sentences
#: around the answer dilute it, above all in its vector (docs/guide/long.md).
_MAX_TOKENS_ALONE = 96
#: Share of a chunk that repeats the end of the chunk before, so that a sentence of this length is whole in one of them.
_OVERLAP = 1 / 4
#: Characters that are tokenized at once, which takes some 5 ms. A word on the border of two slices may count as two.
_SLICE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a document as a candidate, with the title, the doc_id and the score of the document.

    Attributes:
        document: the position of the document in the request.
        span: start and end of the chunk in the document's text, in characters; None: the chunk is the whole document.
    """

    candidate: Passage
    document: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ChunkedDocuments:
    """The documents of a request, and the chunks that are ranked for them, in the order of the documents.

    Attributes:
        unread: doc_ids of the documents whose ends are in no chunk, because the number of chunks is limited.
    """

    documents: tuple[Passage, ...]
    chunks: tuple[Chunk, ...]
    unread: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Request, infos: Sequence[RankerInfo], encoder: Encoder) -> SlicedWork[ChunkedDocuments]:
        """Divides documents that the models cannot read whole into at most `options.max_chunks_per_doc` chunks.

        Args:
            infos: descriptions of the rankers of the request's stages.
            encoder: the encoder whose tokenizer counts tokens.
        """
        tokens = chunk_tokens(infos, len(encoder.token_ends(request.query.text)))
        of_documents, unread = list[list[Chunk]](), set[str]()
        for index, document in enumerate(request.candidates):
            chunks = yield from _divide(document, index, tokens, request.options.max_chunks_per_doc, encoder)
            last = chunks[-1].span
            if last and document.prefix_chars + last[1] < len(document.text):
                unread.add(document.doc_id)
            of_documents.append(chunks)
            yield
        if not _reads_all_chunks(infos) and any(len(chunks) > 1 for chunks in of_documents):
            texts = [chunk.candidate.text for chunks in of_documents for chunk in chunks]
            shared = iter((yield from shared_words(request.query.text, texts)))
            of_documents = [[max(chunks, key=lambda _: next(shared))] for chunks in of_documents]  # of equals the first
        return cls(request.candidates, tuple(itertools.chain.from_iterable(of_documents)), frozenset(unread))

    @property
    def candidates(self) -> tuple[Passage, ...]:
        return tuple(chunk.candidate for chunk in self.chunks)

    def request(self, request: Request) -> Request:
        """The request that ranks the chunks: all of them, because the best `top_n` chunks may be of one document."""
        is_divided = len(self.chunks) > len(self.documents)
        options = replace(request.options, top_n=0) if is_divided else request.options
        return replace(request, candidates=self.candidates, options=options)

    def ranking(self, of_chunks: Ranking, top_n: int) -> Ranking:
        """The ranking of the documents by their best chunks: the first `top_n` documents, or all if it is 0."""
        best: dict[int, RankedCandidate] = {}
        for item in of_chunks.ranked:
            chunk = self.chunks[item.position]
            document = self.documents[chunk.document]
            best.setdefault(chunk.document, replace(item, passage=document, position=chunk.document, span=chunk.span))
        ranked = list(best.values())[: top_n or None]
        if of_chunks.score_kind is ScoreKind.RANK:
            ranked = [replace(item, score=float(len(self.documents) - rank)) for rank, item in enumerate(ranked)]
        return replace(of_chunks, ranked=tuple(ranked), trace=self._trace(of_chunks.trace))

    def _trace(self, trace: Trace) -> Trace:
        """Translates the positions of chunks to the positions of their documents."""
        windows = tuple(
            replace(window, positions=tuple(self.chunks[position].document for position in window.positions))
            for window in trace.windows
        )
        doc_ids = [document.doc_id for document in self.documents]
        cut = self.unread.union(trace.truncated_doc_ids)
        return replace(trace, windows=windows, truncated_doc_ids=tuple(doc_id for doc_id in doc_ids if doc_id in cut))


def chunk_tokens(infos: Sequence[RankerInfo], query_tokens: int) -> float:
    """Number of tokens in a chunk that all models can read whole; infinite if no model reads passages.

    A model that scores each passage alone reads it together with the query, whose tokens are subtracted.
    """
    reads = [
        info.max_passage_tokens - (query_tokens if info.score_kind.is_pointwise else 0)
        for info in infos
        if info.reorders
    ]
    if reads and not _reads_all_chunks(infos):
        reads.append(_MAX_TOKENS_ALONE)
    return max(_MIN_TOKENS, min(reads, default=math.inf))


def _reads_all_chunks(infos: Sequence[RankerInfo]) -> bool:
    return len(infos) == 1 and infos[0].score_kind.is_pointwise


def _divide(document: Passage, index: int, tokens: float, max_chunks: int, encoder: Encoder) -> SlicedWork[list[Chunk]]:
    """Divides a document into chunks, which have no vectors. The text after the last allowed chunk is not tokenized.

    Each chunk begins with the title, which may take up to half of its tokens.

    Args:
        index: index of the document in the request.
        tokens: number of tokens in a chunk, with the title. A shorter document is its only chunk.
        max_chunks: largest number of chunks.
    """
    whole = [Chunk(document, index)]
    if len(document.text) <= tokens:  # no token is shorter than a character
        return whole
    sent = document.text[document.prefix_chars :]
    title = encoder.cut(document.title, int(tokens) // 2)
    tokens_each = int(tokens) - len(encoder.token_ends(title))
    step = tokens_each - int(tokens_each * _OVERLAP)
    ends = yield from _token_ends(sent, encoder, tokens_each + (max_chunks - 1) * step + 1)
    if len(ends) <= tokens_each:
        return whole
    count = min(max_chunks, 1 + math.ceil((len(ends) - tokens_each) / step))
    chunk = replace(document, vector=None, vector_truncated=False, sparse=None)
    chunks = list[Chunk]()
    for first in range(0, count * step, step):
        start = int(ends[first - 1]) if first else 0
        end = int(ends[first + tokens_each - 1]) if first + tokens_each < len(ends) else len(sent)
        text = with_title(sent[start:end], title)
        chunks.append(Chunk(replace(chunk, text=text), index, (start, end)))
    return chunks


def _token_ends(text: str, encoder: Encoder, most: int) -> SlicedWork[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The ends, in characters, of at least the first `most` tokens of a text."""
    found, count = list[np.ndarray[tuple[int], np.dtype[np.int64]]](), 0
    for start in range(0, len(text), _SLICE_CHARS):
        found.append(start + encoder.token_ends(text[start : start + _SLICE_CHARS]))
        count += len(found[-1])
        if count >= most:
            break
        yield
    return np.concatenate(found) if found else np.array([], dtype=np.int64)
