"""Checks before anything is loaded that a model is in a folder, in the local cache or on the Hugging Face hub.

The libraries that download models ask a hub that cannot be reached again and again, for a minute.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache

from rerank.errors import ConfigError
from rerank.util.files import is_missing_folder

#: Time for the hub's answer.
_TIMEOUT_S = 5.0
#: A model has one of these files: a transformer's, or an adapter's.
_CONFIGS = ("config.json", "adapter_config.json")


def check_findable(name: str, what: str, instead: str) -> None:
    """Checks that `name` is a folder, a model in the local cache of the hub, or one that the hub has.

    Args:
        name: a folder, or the name of a model on the hub.
        what: the model's part, which the error message names, such as "--base".
        instead: the end of the error message, what to give instead: "give the folder of a causal language model".

    Raises:
        ConfigError: it is not one of these, or the hub cannot be asked.
    """
    if Path(name).is_dir():
        return
    if is_missing_folder(name):
        raise ConfigError(f"there is no folder {name}; {instead}")
    try:
        if not any(isinstance(try_to_load_from_cache(name, file), str) for file in _CONFIGS):
            HfApi().model_info(name, timeout=_TIMEOUT_S)
    except Exception as error:  # also of the HTTP library
        raise ConfigError(
            f"{what}: {name} is neither a folder nor in the local cache of the Hugging Face hub, and the hub does not "
            f"have it or cannot be asked ({' '.join(str(error).split())[:300]}); {instead}"
        ) from error
