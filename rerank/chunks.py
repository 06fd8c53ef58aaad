"""Long documents: each is divided into parts and ranked by its best one.

A model that scores each passage alone reads all parts, and a document takes the place of its best part: MaxP of Dai and
Callan (SIGIR 2019). Any other model reads one part of each document, the one that shares most words with the query:
several parts of a document would take the places of other documents in its windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rerank.engine.request import RankRequest
from rerank.prompting.truncate import CHARS_PER_TOKEN
from rerank.rankers.base import RankerInfo
from rerank.sentences import Span, divide
from rerank.types import Candidate, Passage, RankedCandidate, Ranking, RankOptions, ScoreKind, Trace, with_title
from rerank.unordered import shared_words

#: The least tokens of a part, also for a model that reads less.
_MIN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document as a candidate of its own, with the title, the doc_id and the score of the document.

    Attributes:
        document: the position of the document in the request.
        span: of the document's text as it was sent; None: the part is the whole document.
        is_last: whether the document ends with it.
    """

    candidate: Candidate
    document: int
    span: Span | None = None
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class DividedDocuments:
    """The documents of a request, and the parts that are ranked for them, in the order of the documents.

    Attributes:
        unread: doc_ids of the documents that are longer than the parts into which they may be divided.
    """

    documents: tuple[Candidate, ...]
    parts: tuple[Part, ...]
    unread: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, request: RankRequest, infos: Sequence[RankerInfo], token_ends: Callable[[str], Sequence[int]]
    ) -> DividedDocuments:
        """Divides the documents that the models read in part only, into up to `options.max_chunks_per_doc` parts.

        Args:
            infos: the rankers of the request's steps.
            token_ends: a text → the end of each of its tokens, in characters.
        """
        query, documents = request.query.text, request.candidates
        if not any(info.reads_passages for info in infos):
            return cls(documents, tuple(Part(document, place) for place, document in enumerate(documents)))
        divider = _Divider(token_ends, part_tokens(infos, len(token_ends(query))), request.options.max_chunks_per_doc)
        divided = [divider.parts(document, place) for place, document in enumerate(documents)]
        unread = frozenset(parts[-1].candidate.passage.doc_id for parts in divided if not parts[-1].is_last)
        reads_all = len(infos) == 1 and infos[0].score_kind.is_pointwise
        return cls(documents, tuple(chain.from_iterable(divided) if reads_all else best_parts(query, divided)), unread)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The parts, as candidates."""
        return tuple(part.candidate for part in self.parts)

    def with_passages(self, passages: Iterable[Passage]) -> DividedDocuments:
        """The same with other passages in the parts."""
        pairs = zip(self.parts, passages, strict=True)
        parts = (replace(part, candidate=replace(part.candidate, passage=passage)) for part, passage in pairs)
        return replace(self, parts=tuple(parts))

    def options(self, options: RankOptions) -> RankOptions:
        """The options with which the parts are ranked: all of them, as the best ones may be of one document."""
        return options if len(self.parts) == len(self.documents) else replace(options, top_n=0)

    def ranking(self, of_parts: Ranking, top_n: int) -> Ranking:
        """The first `top_n` (0: all) documents; each has place, score and span of its best part."""
        best: dict[int, RankedCandidate] = {}
        for item in of_parts.ranked:
            part = self.parts[item.position]
            document = self.documents[part.document]
            best.setdefault(part.document, replace(item, candidate=document, position=part.document, span=part.span))
        ranked = list(best.values())[: top_n or None]
        if of_parts.score_kind is ScoreKind.RANK:
            ranked = [replace(item, score=float(len(self.documents) - rank)) for rank, item in enumerate(ranked)]
        return replace(of_parts, ranked=tuple(ranked), trace=self._trace(of_parts.trace))

    def _trace(self, trace: Trace) -> Trace:
        """The trace with the positions of documents in place of those of parts."""
        windows = tuple(
            replace(window, positions=tuple(self.parts[position].document for position in window.positions))
            for window in trace.windows
        )
        doc_ids, cut = [each.passage.doc_id for each in self.documents], self.unread.union(trace.truncated_doc_ids)
        return replace(
            trace,
            windows=windows,
            truncated_doc_ids=tuple(doc_id for doc_id in doc_ids if doc_id in cut),
            unscored_doc_ids=tuple(dict.fromkeys(trace.unscored_doc_ids)),
            chunked_doc_ids=tuple(dict.fromkeys(doc_ids[part.document] for part in self.parts if part.span)),
        )


@dataclass(frozen=True, slots=True)
class _Divider:
    """Divides documents into parts of up to `max_tokens` tokens, their title included."""

    token_ends: Callable[[str], Sequence[int]]
    max_tokens: int
    max_parts: int

    def parts(self, document: Candidate, position: int) -> list[Part]:
        """The parts of a document, or one part that is all of it. Reads no more of it than they can hold."""
        passage = document.passage
        sent, whole = passage.text[passage.prefix_chars :], [Part(document, position)]
        if len(passage.text) <= self.max_tokens:  # no token is shorter than a character
            return whole
        title = passage.title[: self.max_tokens * CHARS_PER_TOKEN]
        room = self.max_tokens - min(len(self.token_ends(title)) if title else 0, self.max_tokens // 2)
        read = sent[: self.max_parts * room * CHARS_PER_TOKEN]
        spans = divide(read, self.token_ends(read), room, self.max_parts)
        if len(spans) < 2 and len(read) == len(sent):
            return whole
        return [
            Part(_part_of(document, sent[start:end]), position, (start, end), end == len(sent)) for start, end in spans
        ]


def _part_of(document: Candidate, text: str) -> Candidate:
    passage = document.passage
    part = replace(passage, text=with_title(text, passage.title), vector=None, vector_truncated=False)
    return replace(document, passage=part)


def part_tokens(infos: Sequence[RankerInfo], query_tokens: int) -> int:
    """The most tokens of a part: as many as all of these rankers, those that read passages, read of one.

    Those that read a passage alone read the query beside it.
    """
    read = [
        info.max_passage_tokens - (query_tokens if info.score_kind.is_pointwise else 0)
        for info in infos
        if info.reads_passages
    ]
    return max(_MIN_TOKENS, min(read))


def best_parts(query: str, divided: Sequence[Sequence[Part]]) -> list[Part]:
    """Of each document the first of the parts that share most words with the query, see `shared_words`."""
    texts = [part.candidate.passage.text for parts in divided for part in parts]
    if len(texts) == len(divided):
        return list(chain.from_iterable(divided))
    scores = iter(shared_words(query, texts))
    return [max([(next(scores), part) for part in parts], key=lambda scored: scored[0])[1] for parts in divided]
