"""An index on disk: passages, vectors, a Lucene index, and a manifest with its collection, encoder and versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rerank.errors import IndexMismatch
from rerank.models.encoder import Encoder
from rerank.models.encoder_loading import EncoderId
from rerank.models.sparse_encoder import SparseEncoder, SparseEncoderId
from rerank.retrieval.bm25 import BM25Retriever
from rerank.retrieval.dense import DenseRetriever, open_vector_index
from rerank.retrieval.hybrid import HybridRetriever, Retriever, reciprocal_rank, z_score_sum
from rerank.retrieval.index_format import (
    MANIFEST_FILE,
    DenseKind,
    FileDigest,
    check_files,
    file_digests,
    read_index_settings,
)
from rerank.retrieval.sparse_store import SparseStore
from rerank.retrieval.store import PassageStore
from rerank.types import FirstStage, Passage, Precision, Query, ScoredDoc
from rerank.util.validation import problems_of

#: Weights of BM25 and dense search in the sum of z-scores, by the mean over five collections: docs/evidence/results.md.
_Z_WEIGHTS = (0.6, 1.0)


class IndexManifest(BaseModel):
    """The description of an index, stored as manifest.json.

    Attributes:
        format: version of the folder's layout.
        collection: name of the indexed collection.
        passages: number of passages.
        encoder: the encoder of the vectors.
        encoder_dtype: precision of the encoder when it encoded the passages.
        cosine_to_float32: mean cosine of some of the vectors to those in float32.
        sparse_encoder: the encoder of the sparse vectors; None if the index has none.
        dense: kind of dense search.
        dense_recall_at_100: share of exact search's 100 best passages that dense search finds, for short queries made
            from passages; 1 for flat.
        bm25_k1, bm25_b: parameters of BM25.
        versions: package → version when the index was built.
        created_utc: time when the index was built.
        seconds: step of the build → its duration in seconds, for the vectors summed over the workers.
        files: path in the folder → size and hash.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    collection: str
    passages: int
    encoder: EncoderId
    encoder_dtype: Precision
    cosine_to_float32: float = 1.0
    sparse_encoder: SparseEncoderId | None = None
    dense: DenseKind
    dense_recall_at_100: float
    bm25_k1: float
    bm25_b: float
    versions: dict[str, str]
    created_utc: datetime
    seconds: dict[str, float]
    files: dict[str, FileDigest]


class Index:
    """An open index with its passage store and its retrievers.

    Args:
        folder: folder that `build_index` wrote.
        encoder: the encoder of the index.
        sparse_encoder: loads the sparse encoder of the index; called if the index has sparse vectors. None: sparse
            vectors are not read, and passages have none.

    Raises:
        IndexMismatch: `folder` is not an index, has another format, was built with another encoder, or is damaged.
    """

    def __init__(
        self, folder: Path, encoder: Encoder, sparse_encoder: Callable[[], SparseEncoder] | None = None
    ) -> None:
        self.manifest = read_manifest(folder)
        _check_encoder(folder, self.manifest, encoder.id)
        check_files(folder, self.manifest.files)
        sparse = _open_sparse(folder, self.manifest, sparse_encoder) if sparse_encoder else None
        self.store = PassageStore(folder, (self.manifest.passages, encoder.id.dimension), sparse)
        vectors = open_vector_index(self.manifest.dense, folder, self.store.vectors)
        self._bm25 = bm25 = BM25Retriever(folder / "bm25")
        dense = DenseRetriever(vectors, encoder, self.manifest.passages)
        self._retrievers: dict[FirstStage, Retriever] = {
            FirstStage.BM25: bm25,
            FirstStage.DENSE: dense,
            FirstStage.HYBRID_RRF: HybridRetriever(bm25, dense, reciprocal_rank),
            FirstStage.HYBRID_Z_SCORE: HybridRetriever(bm25, dense, partial(z_score_sum, weights=_Z_WEIGHTS)),
        }

    def search(self, first_stage: FirstStage, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        """The best passages of each query, at most `depth` of them, best first."""
        return [self.store.scored_docs(hits) for hits in self._retrievers[first_stage].search(queries, depth)]

    def with_word_table(self, query: Query) -> Query:
        """The query with the document frequencies of its stems in the index, if it has no word table yet."""
        return query if query.word_table else replace(query, word_table=self._bm25.word_table(query.text))

    def candidates(self, first_stage: FirstStage, query: Query, depth: int) -> tuple[Passage, ...]:
        """The best passages of a query, at most `depth` of them, with text, vector and score, best first."""
        (hits,) = self._retrievers[first_stage].search([query], depth)
        passages = self.store.at_rows([hit.row for hit in hits])
        return tuple(replace(passage, score=hit.score) for passage, hit in zip(passages, hits, strict=True))


def write_manifest(folder: Path, manifest: IndexManifest) -> IndexManifest:
    """Writes the manifest of an index with the sizes and hashes of all other files, and returns it."""
    complete = manifest.model_copy(update={"files": file_digests(folder)})
    (folder / MANIFEST_FILE).write_text(complete.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return complete


def verify_index(folder: Path) -> IndexManifest:
    """Checks the size and the hash of every file of an index.

    Raises:
        IndexMismatch: `folder` is not an index, or is damaged.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest.files, all_hashes=True)
    return manifest


def read_manifest(folder: Path) -> IndexManifest:
    """The manifest of an index. Raises: IndexMismatch when `folder` has no manifest of this format."""
    content = read_index_settings(folder)
    try:
        return IndexManifest.model_validate(content)
    except ValidationError as error:
        problems = problems_of(error, content, IndexManifest, lambda _: str(folder / MANIFEST_FILE))
        raise IndexMismatch(f"{problems}; build the index again") from error


def _open_sparse(
    folder: Path, manifest: IndexManifest, load_encoder: Callable[[], SparseEncoder]
) -> SparseStore | None:
    """The sparse vectors of an index; None if it has none. Raises: IndexMismatch if another encoder computed them."""
    if (expected := manifest.sparse_encoder) is None:
        return None
    if (found := load_encoder().id) != expected:
        raise IndexMismatch(
            f"the sparse vectors of {folder} are from {expected.name} (SHA-256 {expected.sha256}), but the loaded "
            f"sparse encoder is {found.name} (SHA-256 {found.sha256}); set sparse_encoder to the former or build the "
            "index again"
        )
    return SparseStore(folder, manifest.passages, expected.vocabulary_size)


def _check_encoder(folder: Path, manifest: IndexManifest, encoder: EncoderId) -> None:
    if manifest.encoder != encoder:
        raise IndexMismatch(
            f"{folder} was built with {manifest.encoder}, but the loaded one is {encoder}; set encoder to the former "
            "or build the index again"
        )
