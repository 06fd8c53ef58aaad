"""Long documents: each is divided into chunks and ranked by its best one.

A model that scores each passage alone reads all chunks, and a document takes the place of its best chunk: MaxP of Dai
and Callan (SIGIR 2019). Any other model reads one chunk of each document, because several would take the places of
other documents in its windows: of the few chunks that share most words with the query, the one whose vector is nearest
to that of the query; of long chunks, whose vectors say little, the first of these.

In a cascade, the chunks are as long as the preranker reads. A model that reads less than half of that is left out if a
document is longer than it reads: it would judge by a few sentences what the preranker has read whole. Chunks whose
relevance follows from signals are no longer than the passages by which its curve was fitted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rerank.checkpoints.relevance import OWN_LOG_ODDS
from rerank.engine.job import RankJob
from rerank.engine.strategies import Steps
from rerank.models.encoder import Encoder
from rerank.prompting.truncate import CHARS_PER_TOKEN
from rerank.rankers.base import RankerInfo
from rerank.reranking.sentences import Span, divide, read
from rerank.reranking.unordered import shared_words
from rerank.types import InSlices, Passage, Query, RankedCandidate, Ranking, ScoreKind, Trace, with_title

#: The least tokens of a chunk, also for a model that reads less.
_MIN_TOKENS = 16
#: The most tokens of a chunk whose relevance follows from signals, with a sparse score among them and without: in
#: longer ones, the sentences around the answer dilute it, and most of all its vector (docs/guide/long.md).
_FITTED_TOKENS, _COSINE_TOKENS = 96, 48
#: The chunks of a document that are encoded, those that share most words with the query. With one, the answer is missed
#: where another chunk repeats the query's words; more than three find no more (docs/guide/long.md).
_ENCODED_CHUNKS = 3


@dataclass(frozen=True, slots=True)
class Readers:
    """The models that read the chunks of a request's documents, and how much each of them reads.

    Attributes:
        steps: those of the request.
        kept: the steps without those that read too little of the chunks.
        least_tokens: the fewest tokens that a model of `steps` reads of a passage.
        chunk_tokens: the fewest that a model of `kept` reads, and no more than those of passages by which its relevance
            was fitted. Infinite if none of them reads passages.
        reads_all_chunks: whether the chunks of a document are all ranked.
        warning: which models are left out in `kept`, and why.
    """

    steps: Steps
    kept: Steps
    least_tokens: float
    chunk_tokens: float
    reads_all_chunks: bool
    warning: str = ""

    @classmethod
    def of(cls, job: RankJob, infos: Sequence[RankerInfo], query_tokens: int) -> Readers:
        """Computes what the models of the steps read. One that reads a passage alone reads the query beside it.

        No model is left out if only it gives the relevance that is asked for.
        """
        steps = job.steps
        tokens = [_tokens_read(info, query_tokens) for info in infos]
        first = next((count for count in tokens if count < math.inf), 0)
        kept = [place for place, count in enumerate(tokens) if 2 * count >= first]
        left_out = [place for place in range(len(steps)) if place not in kept]
        needs_relevance = job.options.min_relevance is not None and not infos[kept[-1]].relevance
        if needs_relevance:
            kept, left_out = list(range(len(steps))), []
        reads_all = len(kept) == 1 and infos[kept[0]].reads_alone
        warning = "; ".join(
            f"{steps[place].model} reads {tokens[place]:.0f} tokens of a passage and {steps[kept[-1]].model} "
            f"{first:.0f}, so {steps[place].model} was left out for these long documents"
            for place in left_out
        )
        chunk_tokens = min(tokens[place] for place in kept)
        if _has_fitted_relevance(infos[kept[-1]]):
            has_sparse = any("sparse" in infos[place].signals for place in kept)
            chunk_tokens = min(chunk_tokens, _FITTED_TOKENS if has_sparse else _COSINE_TOKENS)
        return cls(steps, tuple(steps[place] for place in kept), min(tokens), chunk_tokens, reads_all, warning)


def _has_fitted_relevance(info: RankerInfo) -> bool:
    return info.reads_passages and bool(info.relevance) and info.relevance != OWN_LOG_ODDS


def _tokens_read(info: RankerInfo, query_tokens: int) -> float:
    if not info.reads_passages:
        return math.inf
    return max(_MIN_TOKENS, info.max_passage_tokens - (query_tokens if info.score_kind.is_pointwise else 0))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a document as a candidate of its own, with the title, the doc_id and the score of the document.

    Attributes:
        document: the position of the document in the request.
        span: of the document's text as it was sent; None: the chunk is the whole document.
    """

    candidate: Passage
    document: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ChunkedDocuments:
    """The documents of a request, and the chunks that are ranked for them, in the order of the documents.

    Attributes:
        steps: those of the request that rank the chunks.
        unread: doc_ids of the documents that are longer than the chunks into which they may be divided.
        warning: which steps are left out, and why; empty if none is.
    """

    documents: tuple[Passage, ...]
    chunks: tuple[Chunk, ...]
    steps: Steps
    unread: frozenset[str] = frozenset()
    warning: str = ""

    @classmethod
    def of(cls, job: RankJob, infos: Sequence[RankerInfo], encoder: Encoder) -> InSlices[ChunkedDocuments]:
        """Divides the documents that the models read in part only, into up to `options.max_chunks_per_doc` chunks.

        Args:
            infos: the rankers of the request's steps.
            encoder: tokenizes the texts, and compares chunks with the query.
        """
        documents = job.candidates
        readers = Readers.of(job, infos, len(encoder.token_ends(job.query.text)))
        if math.isinf(readers.chunk_tokens):
            return cls(documents, tuple(Chunk(document, place) for place, document in enumerate(documents)), job.steps)
        divided = list[_Document]()
        for document in documents:
            divided.append((yield from _divide(document, readers, job.options.max_chunks_per_doc, encoder)))
            yield
        of_documents = [item.chunks(place) for place, item in enumerate(divided)]
        if not readers.reads_all_chunks and any(item.spans for item in divided):
            compared = _ENCODED_CHUNKS if readers.chunk_tokens <= _FITTED_TOKENS else 1
            chunks = yield from _best_chunks(encoder, job.query, of_documents, compared)
        else:
            chunks = list(itertools.chain.from_iterable(of_documents))
        unread = frozenset(item.document.doc_id for item in divided if item.has_unread)
        if not any(item.is_long for item in divided):
            return cls(documents, tuple(chunks), job.steps, unread)
        return cls(documents, tuple(chunks), readers.kept, unread, readers.warning)

    @property
    def candidates(self) -> tuple[Passage, ...]:
        """The chunks, as candidates."""
        return tuple(chunk.candidate for chunk in self.chunks)

    def job(self, job: RankJob) -> RankJob:
        """The request that ranks the chunks: all of them, because the best ones may be of one document."""
        is_divided = len(self.chunks) > len(self.documents)
        options = replace(job.options, top_n=0) if is_divided else job.options
        return replace(job, candidates=self.candidates, steps=self.steps, options=options)

    def ranking(self, of_chunks: Ranking, top_n: int) -> Ranking:
        """Ranks the documents by their best chunks, and returns the first `top_n` (0: all) of them."""
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
        """Translates the positions of chunks to those of their documents."""
        windows = tuple(
            replace(window, positions=tuple(self.chunks[position].document for position in window.positions))
            for window in trace.windows
        )
        doc_ids = [document.doc_id for document in self.documents]
        cut = self.unread.union(trace.truncated_doc_ids)
        return replace(
            trace,
            windows=windows,
            model_warning="; ".join(filter(None, [trace.model_warning, self.warning])),
            truncated_doc_ids=tuple(doc_id for doc_id in doc_ids if doc_id in cut),
        )


@dataclass(frozen=True, slots=True)
class _Document:
    """A document and its chunks.

    Attributes:
        title: what stands in front of each chunk, up to half of its tokens.
        spans: the chunks of its text, as it was sent; none if it is read whole.
        is_long: whether a model of the request reads only its beginning.
        has_unread: whether it goes on after the last chunk.
    """

    document: Passage
    title: str = ""
    spans: tuple[Span, ...] = ()
    is_long: bool = False
    has_unread: bool = False

    def chunks(self, place: int) -> list[Chunk]:
        """Makes candidates of the chunks, without the document's vectors; the document itself if it is read whole.

        Args:
            place: the position of the document in the request.
        """
        if not self.spans:
            return [Chunk(self.document, place)]
        chunk = replace(self.document, vector=None, vector_truncated=False, sparse=None)
        return [Chunk(replace(chunk, text=self._text(span)), place, span) for span in self.spans]

    def _text(self, span: Span) -> str:
        before, (start, end) = self.document.prefix_chars, span
        return with_title(self.document.text[before + start : before + end], self.title)


def _divide(document: Passage, readers: Readers, max_chunks: int, encoder: Encoder) -> InSlices[_Document]:
    """Divides a document. Reads no more of it than its chunks can hold."""
    chunk_tokens = int(readers.chunk_tokens)
    if len(document.text) <= readers.least_tokens:  # no token is shorter than a character
        return _Document(document)
    sent, title = document.text[document.prefix_chars :], document.title[: chunk_tokens * CHARS_PER_TOKEN]
    title_ends = encoder.token_ends(title)[: chunk_tokens // 2]
    if len(title_ends) == chunk_tokens // 2:
        title = title[: title_ends[-1]]
    tokens_each = chunk_tokens - len(title_ends)
    found = yield from read(
        sent[: max_chunks * tokens_each * CHARS_PER_TOKEN], encoder.token_ends, (max_chunks + 1) * tokens_each
    )
    spans = divide(found, tokens_each, max_chunks)
    is_whole, is_long = found.length == len(sent), len(title_ends) + len(found.tokens) > readers.least_tokens
    if len(spans) < 2 and is_whole:
        return _Document(document, is_long=is_long)
    return _Document(document, title, tuple(spans), is_long, has_unread=spans[-1][1] < len(sent))


def _best_chunks(
    encoder: Encoder, query: Query, of_documents: Sequence[Sequence[Chunk]], compared: int
) -> InSlices[list[Chunk]]:
    """Chooses a chunk of each document, the first of equals, and gives it the vector by which it was chosen.

    Args:
        compared: the chunks of a document whose vectors are compared; with 1, no chunk is encoded.
    """
    texts = [chunk.candidate.text for chunks in of_documents for chunk in chunks]
    scores = iter((yield from shared_words(query.text, texts)))
    of_query = np.array(encoder.with_vector(query).vector)
    best = list[Chunk]()
    for chunks in of_documents:
        its_scores = [next(scores) for _ in chunks]
        by_words = sorted(range(len(chunks)), key=lambda place: -its_scores[place])[:compared]
        some = [chunks[place] for place in sorted(by_words)]
        if len(some) > 1:
            passages = [encoder.vector_cache.with_cached_vector(chunk.candidate) for chunk in some]
            passages = encoder.with_vectors(passages, "auto")
            cosines = [float(np.array(passage.vector) @ of_query) for passage in passages]
            place = cosines.index(max(cosines))
            some = [replace(some[place], candidate=passages[place])]
        best += some
        yield
    return best
