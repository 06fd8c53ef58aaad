"""Trackers of --report-to: one without its package or its login is named before a model is loaded."""

import sys
from pathlib import Path

import pytest
from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.arguments import RunArguments

from rerank.errors import ConfigError
from tests.training.parsing import parse_arguments

VARIABLES = (
    *("WANDB_API_KEY", "WANDB_MODE"),
    *("COMET_API_KEY", "COMET_MODE", "COMET_START_ONLINE"),
    *("CLEARML_API_ACCESS_KEY", "CLEARML_OFFLINE_MODE"),
    *("SWANLAB_API_KEY", "SWANLAB_MODE"),
)
#: Packages of trackers: what they answer to a caller with the key "known", with another key, and without one.
PACKAGES = {
    "wandb.py": """
import os
class Error(Exception): ...
def login(prompt):
    assert not prompt
    if os.environ.get("WANDB_API_KEY", "known") != "known":
        raise Error("the key is\\ninvalid")
    return "WANDB_API_KEY" in os.environ
""",
    "comet_ml.py": """
import os
def get_config(name):
    assert name == "comet.api_key"
    return os.environ.get("COMET_API_KEY")
""",
    "clearml/__init__.py": """
import os
class Task:
    is_offline = staticmethod(lambda: os.environ.get("CLEARML_OFFLINE_MODE") == "1" or None)
""",
    "clearml/backend_api/__init__.py": "",
    "clearml/backend_api/config.py": """
import os
def load():
    return {"api.credentials.access_key": os.environ.get("WRITTEN_BY_CLEARML_INIT", "")}
""",
    "swanlab.py": """
import os
class AuthenticationError(Exception): ...
def login():
    if os.environ.get("SWANLAB_API_KEY") != "known":
        raise AuthenticationError("No API key provided.")
""",
}


def report_to(tracker: str) -> RunArguments:
    required = ["--lists", "l.jsonl", "--base", "b", "--output-dir", "out"]
    _, settings = parse_arguments(FirstArguments, *required, "--report-to", tracker)
    assert isinstance(settings, RunArguments)
    return settings


@pytest.mark.parametrize(
    ("tracker", "problem"),
    [
        ("wandb", "wandb.*install"),
        ("mlflow", "mlflow.*install"),
        ("comet_ml", "comet.*install"),
        ("clearml", "clearml.*install"),
        ("swanlab", "swanlab.*install"),
        ("wandb\n", "not supported"),
        ("\u043a", "not supported"),
    ],
)
def test_tracker_that_is_not_installed_is_named(tracker, problem):
    with pytest.raises(ConfigError, match=f"--report-to {tracker.strip()}: .*{problem}.*; or use none") as caught:
        report_to(tracker)
    assert "\n" not in str(caught.value)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Makes the packages importable, whether the real ones are installed or not."""
    for name, content in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
        module = Path(name).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("tracker", "name", "value", "problem"),
    [
        ("wandb", "WANDB_MODE", "online", "there is no login; run wandb login, or set WANDB_API_KEY"),
        ("wandb", "WANDB_API_KEY", "other", "the key is invalid; run wandb login, or set WANDB_API_KEY"),
        ("wandb", "WANDB_API_KEY", "known", ""),
        ("wandb", "WANDB_MODE", "offline", ""),
        ("wandb", "WANDB_MODE", "disabled", ""),
        ("comet_ml", "COMET_MODE", "", "there is no login; run comet login, or set COMET_API_KEY"),
        ("comet_ml", "COMET_API_KEY", "known", ""),
        ("comet_ml", "COMET_MODE", "offline", ""),
        ("comet_ml", "COMET_START_ONLINE", "0", ""),
        ("clearml", "CLEARML_OFFLINE_MODE", "0", "there is no login; run clearml-init, or set CLEARML_API_ACCESS_KEY"),
        ("clearml", "CLEARML_API_ACCESS_KEY", "known", ""),
        ("clearml", "CLEARML_OFFLINE_MODE", "1", ""),
        ("clearml", "WRITTEN_BY_CLEARML_INIT", "known", ""),
        ("swanlab", "SWANLAB_MODE", "online", "No API key provided. Run swanlab login, or set SWANLAB_API_KEY"),
        ("swanlab", "SWANLAB_API_KEY", "known", ""),
        ("swanlab", "SWANLAB_MODE", "local", ""),
    ],
)
def test_tracker_without_a_login_is_named(tracker, name, value, problem, packages, monkeypatch):
    monkeypatch.setenv(name, value)
    integrations = "transformers.integrations.integration_utils"
    if tracker == "comet_ml":  # which transformers imported, or did not, before this test
        for name in ("_is_comet_installed", "_is_comet_recent_enough"):
            monkeypatch.setattr(f"{integrations}.{name}", True)
    else:
        monkeypatch.setattr(f"{integrations}.is_{tracker}_available", lambda: True)
    if not problem:
        assert report_to(tracker).report_to == [tracker]
        return
    with pytest.raises(ConfigError, match=f"--report-to {tracker}: {problem}.*; or use none"):
        report_to(tracker)
