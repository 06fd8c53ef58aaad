"""Checks packages and logins of the trackers in --report-to before the model is loaded; Trainer would do so later."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from transformers.integrations.integration_utils import get_reporting_integration_callbacks, is_tensorboard_available


def problem_of_trackers(trackers: Sequence[str]) -> str:
    """The problem of the first tracker that cannot be used, in words; empty if all can be used.

    Raises:
        ValueError: transformers has no tracker of this name.
        RuntimeError, ImportError: a package is not installed.
    """
    if "tensorboard" in trackers and not is_tensorboard_available():
        return "tensorboard is not installed; install rerank-listwise[train]"
    for callback in get_reporting_integration_callbacks(list(trackers)):
        if problem := _missing_package(callback):
            return problem
    for tracker in trackers:
        if tracker in _LOGINS and (problem := _LOGINS[tracker]()):
            return problem
    return ""


def _missing_package(callback: Callable[[], object]) -> str:
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # MLflow's destructor fails after a failed __init__
    try:
        callback()
    except (RuntimeError, ImportError) as error:
        error.__traceback__ = None  # it would keep the callback alive
        return str(error)
    finally:
        sys.unraisablehook = hook
    return ""


def _wandb() -> str:
    if os.environ.get("WANDB_MODE", "online") in ("offline", "disabled", "dryrun"):
        return ""
    wandb = import_module("wandb")
    way = "run wandb login, or set WANDB_API_KEY, or WANDB_MODE=offline"
    try:
        return "" if wandb.login(prompt=False) else f"there is no login; {way}"
    except wandb.Error as error:
        return f"{error}; {way}"


def _comet() -> str:
    is_offline = os.environ.get("COMET_MODE", "").upper() in ("OFFLINE", "DISABLED")
    if is_offline or os.environ.get("COMET_START_ONLINE", "1").lower() in ("0", "false"):
        return ""
    if import_module("comet_ml").get_config("comet.api_key"):
        return ""
    return "there is no login; run comet login, or set COMET_API_KEY, or COMET_MODE=OFFLINE"


def _clearml() -> str:
    if import_module("clearml").Task.is_offline() or os.environ.get("CLEARML_API_ACCESS_KEY"):
        return ""
    if import_module("clearml.backend_api.config").load().get("api.credentials.access_key", ""):
        return ""
    return "there is no login; run clearml-init, or set CLEARML_API_ACCESS_KEY, or CLEARML_OFFLINE_MODE=1"


def _swanlab() -> str:
    if os.environ.get("SWANLAB_MODE", "online") in ("local", "offline", "disabled"):
        return ""
    swanlab = import_module("swanlab")
    try:
        swanlab.login()
    except Exception as error:  # the class of the exception differs between versions
        return f"{error} Run swanlab login, or set SWANLAB_API_KEY, or SWANLAB_MODE=local"
    return ""


#: Tracker that needs a login, by its name in --report-to → a function that returns how to log in, or "" after a login.
_LOGINS: Mapping[str, Callable[[], str]] = {
    "wandb": _wandb,
    "comet_ml": _comet,
    "clearml": _clearml,
    "swanlab": _swanlab,
}
