"""Unordered lists: candidates are sorted by their content first, so that their order in the request has no effect.

Each distinct text is ranked once. Candidates with this text have its score and follow one another in the ranking.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rerank.engine.request import Request
from rerank.engine.scores import warning_of_lost_scores
from rerank.types import Completeness, Passage, RankedCandidate, Ranking, RankOptions, ScoreKind, SlicedWork, Trace
from rerank.util.words import words

#: Characters at the start of a text that are searched for words of the query.
_READ_CHARS = 2_000
_NO_SCORES = "first_stage_weight is left out: the list is unordered, and not every candidate has a finite score"
_UNREAD = "; the list is unordered: what was not reranked is ordered by the words that it shares with the query"


@dataclass(frozen=True, slots=True)
class UnorderedList:
    """Candidates of an unordered list, in groups of equal text.

    Attributes:
        candidates: the candidates in the order of the request.
        groups: for each distinct text, the positions of its candidates, sorted by doc_id. The model reads the texts in
            this order: by falling first-stage score if `has_scores`, otherwise by the words that they share with the
            query; blank texts come last. A hash breaks ties.
        has_scores: whether every candidate has a finite first-stage score; of equal texts, the best score counts.
    """

    candidates: tuple[Passage, ...]
    groups: tuple[tuple[int, ...], ...]
    has_scores: bool

    @classmethod
    def of(cls, query: str, candidates: Sequence[Passage]) -> SlicedWork[UnorderedList]:
        """Groups the candidates, as work in slices. Two texts count as equal only if their titles are equal, too."""
        by_text, scores, has_scores = dict[tuple[str, str], list[int]](), dict[tuple[str, str], float](), True
        for position, candidate in enumerate(candidates):
            text, score = (candidate.title, candidate.text), candidate.score
            by_text.setdefault(text, []).append(position)
            if score is None or not math.isfinite(score):
                has_scores = False
            else:
                scores[text] = max(score, scores.get(text, score))
        if not has_scores:
            shared = yield from shared_words(query, [text for _, text in by_text])
            for text, score in zip(by_text, shared, strict=True):
                scores[text] = score if text[1].strip() else -1.0
        order = list[tuple[float, bytes, tuple[int, ...]]]()
        for text, same in by_text.items():
            if len(same) > 1:
                same.sort(key=lambda position: _by_doc_id(candidates[position]))
            order.append((-scores[text], _hash(text), tuple(same)))
            yield
        order.sort()
        return cls(tuple(candidates), tuple([same for *_, same in order]), has_scores)

    @property
    def distinct(self) -> tuple[Passage, ...]:
        """One candidate for each group, in their order: the first, with the group's vector and best score."""
        distinct = list[Passage]()
        for same in self.groups:
            first = self.candidates[same[0]]
            is_alone = len(same) == 1 and (self.has_scores or first.score is None)
            distinct.append(first if is_alone else self._merged([self.candidates[position] for position in same]))
        return tuple(distinct)

    def request(self, request: Request) -> Request:
        """The request that ranks `distinct`: ordered if `has_scores`, otherwise without a weight of the first stage."""
        if self.has_scores:
            return replace(request, candidates=self.distinct, options=replace(request.options, ordered=True))
        first, *others = request.stages
        return replace(request, candidates=self.distinct, stages=(replace(first, weight=0.0), *others))

    def ranking(self, of_distinct: Ranking, options: RankOptions) -> Ranking:
        """The ranking of all candidates, from the ranking of `distinct`."""
        ranked: list[RankedCandidate] = []
        for item in of_distinct.ranked:
            is_rank = of_distinct.score_kind is ScoreKind.RANK
            score = float(len(self.candidates) - len(ranked)) if is_rank else item.score
            for index in self.groups[item.position]:
                ranked.append(RankedCandidate(self.candidates[index], index, score, item.relevance, item.span))
        lost = "" if self.has_scores or not options.first_stage_weight else _NO_SCORES
        trace = self._trace(of_distinct.trace, warning_of_lost_scores(self.candidates) or lost)
        return Ranking(tuple(ranked[: options.top_n or None]), of_distinct.score_kind, trace)

    def _merged(self, same: Sequence[Passage]) -> Passage:
        """One candidate for several with the same text."""
        first = same[0]
        passage = next((candidate for candidate in same if candidate.vector is not None), first)
        score = max(candidate.score or 0.0 for candidate in same) if self.has_scores else None
        return replace(passage, doc_id=first.doc_id, score=score)

    def _trace(self, trace: Trace, warning: str) -> Trace:
        """Translates positions to those in the request, and doc_ids to all doc_ids with the same text."""
        unread = trace.completeness is not Completeness.FULL and not self.has_scores
        first = [same[0] for same in self.groups]
        return replace(
            trace,
            windows=tuple(
                [
                    replace(window, positions=tuple([first[index] for index in window.positions]))
                    for window in trace.windows
                ]
            ),
            input_order=tuple(first),
            truncated_doc_ids=self._all_doc_ids(trace.truncated_doc_ids),
            reason=trace.reason + (_UNREAD if unread else ""),
            model_warning="; ".join(filter(None, [trace.model_warning, warning])),
        )

    def _all_doc_ids(self, doc_ids: Collection[str]) -> tuple[str, ...]:
        """Adds the doc_ids of all other candidates with the same texts."""
        wanted, found = set(doc_ids), list[str]()
        for same in self.groups if wanted else ():
            if self.candidates[same[0]].doc_id in wanted:
                found += [self.candidates[position].doc_id for position in same]
        return tuple(found)


def shared_words(query: str, texts: Sequence[str]) -> SlicedWork[list[float]]:
    """Scores of n texts by the words of the query in their first 2,000 characters.

    A score is the sum of log(1 + n / df) over the distinct words, where df is the number of texts with the word.
    """
    of_query = set(words(query))
    shared, frequency = list[set[str]](), Counter[str]()
    for text in texts:
        shared.append(found := of_query.intersection(words(text[:_READ_CHARS])))
        frequency.update(found)
        yield
    weights = {word: math.log1p(len(texts) / count) for word, count in frequency.items()}
    return [math.fsum(map(weights.__getitem__, found)) for found in shared]


def _hash(text: tuple[str, str]) -> bytes:
    """A hash of title and text, which breaks ties without a preference, as the alphabet would have one."""
    return hashlib.sha256("\0".join(text).encode("utf-8", "surrogatepass")).digest()


def _by_doc_id(candidate: Passage) -> tuple[int, str]:
    """Sort key: shorter doc_ids first, so that the ids of plain texts, "0", "1", …, "10", keep their order."""
    return len(candidate.doc_id), candidate.doc_id
