"""The dialects that are rows of a table: Voyage, Pinecone, NVIDIA NIM, SGLang, Weaviate and vLLM's scores."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, FailFast, Field, create_model

from rerank.ports.http.dialects.documents import Documents, RankFields, Texts
from rerank.ports.http.dialects.form import Form, Slot
from rerank.ports.http.dialects.options import Flag, Options, StrictModel, TextField, TopN

_ShowDocuments: TypeAlias = Annotated[Flag, Field(description="Whether results have their document.")]
_Truncate: TypeAlias = Annotated[
    Literal["NONE", "END"] | None,
    Field(description="NONE: a passage that is longer than the model reads is an error."),
]


class VoyageRequest(Options):
    """A request to Voyage AI."""

    query: str
    documents: Texts
    top_k: TopN = None
    return_documents: _ShowDocuments = None
    truncation: Annotated[
        Flag, Field(description="false: a document that is longer than the model reads is an error.")
    ] = None


VOYAGE = Form(
    name="documents with top_k (Voyage)",
    request=VoyageRequest,
    top_n="top_k",
    shows_documents=False,
    truncation=("truncation", False, "true"),
    result={
        "index": Slot.INDEX,
        "relevance_score": Slot.SCORE,
        "ranked": Slot.RANKED,
        "document": Slot.TEXT,
    },
    envelope={"object": "list", "data": Slot.RESULTS, "model": Slot.MODEL, "usage": Slot.USAGE},
)


class PineconeParameters(StrictModel):
    """Options of a model of Pinecone."""

    truncate: _Truncate = None


class PineconeRequest(Options):
    """A request to Pinecone."""

    query: str
    documents: Documents
    top_n: TopN = None
    rank_fields: RankFields = None
    return_documents: _ShowDocuments = None
    parameters: PineconeParameters | None = None


PINECONE = Form(
    name="documents (Pinecone)",
    request=PineconeRequest,
    top_n="top_n",
    truncation=("parameters.truncate", "NONE", "END"),
    result={"index": Slot.INDEX, "score": Slot.SCORE, "ranked": Slot.RANKED, "document": Slot.OBJECT},
    envelope={"model": Slot.MODEL, "data": Slot.RESULTS, "usage": {"rerank_units": 1}},
)


class NimRequest(Options):
    """A request to NVIDIA NIM."""

    query: TextField
    passages: Annotated[list[TextField], FailFast()]
    top_n: TopN = None
    truncate: _Truncate = None


NIM = Form(
    name="passages (NVIDIA NIM)",
    passages_field="passages",
    request=NimRequest,
    top_n="top_n",
    truncation=("truncate", "NONE", "END"),
    result={"index": Slot.INDEX, "logit": Slot.LOGIT, "ranked": Slot.RANKED},
    envelope={"rankings": Slot.RESULTS, "usage": Slot.USAGE},
)


class SGLangRequest(Options):
    """A request to SGLang."""

    query: str
    documents: Texts
    top_n: TopN = None
    return_documents: _ShowDocuments = None


SGLANG = Form(
    name="documents (SGLang)",
    request=SGLangRequest,
    top_n="top_n",
    result={"index": Slot.INDEX, "score": Slot.SCORE, "ranked": Slot.RANKED, "document": Slot.TEXT},
    envelope={},
)


class WeaviateRequest(Options):
    """A request of Weaviate's module reranker-transformers."""

    query: str
    documents: Texts
    property: Annotated[str | None, Field(description="Weaviate's name of the field with the documents.")]


WEAVIATE = Form(
    name="documents with property (Weaviate)",
    request=WeaviateRequest,
    in_request_order=True,
    result={"document": Slot.TEXT, "score": Slot.SCORE, "ranked": Slot.RANKED},
    envelope={"query": Slot.QUERY, "property": Slot.PROPERTY, "scores": Slot.RESULTS},
)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_TextOrTexts: TypeAlias = Annotated[Texts, BeforeValidator(_listed)]


def _score(queries: str, texts: str) -> Form:
    """The score API of vLLM with these names of its two fields. A text may stand for a list with one."""
    of_queries = Field(description=f"The query, or one for each of {texts}.")
    raw = Field(description="false: scores as gRPC returns them, not 0 to 1.")
    fields: Any = {
        queries: Annotated[_TextOrTexts, of_queries],
        texts: _TextOrTexts,
        "use_activation": (Annotated[Flag, raw], None),
    }
    return Form(
        name=f"{queries} and {texts} (vLLM's scores)",
        passages_field=texts,
        request=create_model(f"Score{texts.title().replace('_', '')}Request", __base__=Options, **fields),
        query=queries,
        in_request_order=True,
        result={"index": Slot.INDEX, "object": "score", "score": Slot.SCORE, "ranked": Slot.RANKED},
        envelope={
            "id": Slot.ID,
            "object": "list",
            "created": Slot.CREATED,
            "model": Slot.MODEL,
            "data": Slot.RESULTS,
            "usage": Slot.USAGE,
        },
    )


#: By the field with the texts, as vLLM's versions call it.
SCORES = {
    texts: _score(queries, texts)
    for queries, texts in (
        ("text_1", "text_2"),
        ("queries", "documents"),
        ("queries", "items"),
        ("data_1", "data_2"),
    )
}
