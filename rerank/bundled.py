"""The checkpoints that come with the package, trained by `scripts/reproduce_defaults.sh`."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "checkpoints"

#: FIRST on text: a BERT-shaped decoder of 23M parameters.
FIRST = _FOLDER / "first_minilm"

#: PE-Rank over the default encoder's vectors: three layers.
PE_RANK = _FOLDER / "pe_rank_minilm"
