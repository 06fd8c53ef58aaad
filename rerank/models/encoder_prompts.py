"""The texts that an encoder reads in front of queries and of passages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rerank.errors import CheckpointError

#: Names of prompts in config_sentence_transformers.json, as `encode_query` and `encode_document` look them up.
_QUERY, _DOCUMENT = ("query",), ("document", "passage", "corpus")


class Prompts(NamedTuple):
    """The prompts in front of each query and each passage; empty: none."""

    query: str = ""
    document: str = ""


def resolve_prompts(
    folder: Path, stated: Mapping[str, str | None], query: str | None = None, document: str | None = None
) -> Prompts:
    """Returns the prompts of an encoder.

    sentence-transformers (6.2) looks `document` up first, and takes the empty one that it adds itself for a folder that
    states `passage` or `corpus`; here the first prompt counts that is not empty.

    Args:
        folder: of the encoder, for messages.
        stated: `prompts` of the folder's config_sentence_transformers.json.
        query, document: settings, which are preferred to the folder; None: not set.

    Raises:
        CheckpointError: the folder states prompts for other uses only, and the settings none.
    """
    texts = {name: prompt for name, prompt in stated.items() if prompt}
    if texts and not texts.keys() & {*_QUERY, *_DOCUMENT} and query is document is None:
        raise CheckpointError(
            f"{folder} states the prompts {', '.join(texts)}, but none for `query` or `document`; set "
            "encoder.query_prompt and encoder.document_prompt, to '' for none"
        )
    of_query, of_document = (
        next((texts[name] for name in names if name in texts), "") for names in (_QUERY, _DOCUMENT)
    )
    return Prompts(of_query if query is None else query, of_document if document is None else document)
