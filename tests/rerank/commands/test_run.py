"""How a command ends: errors that a user can act on are one line, bugs keep their traceback."""

from __future__ import annotations

import pytest

from rerank.commands.run import run
from rerank.errors import CheckpointError, ConfigError


@pytest.mark.parametrize(
    ("module", "requirement"),
    [
        ("mcp.server.stdio", "rerank-listwise[mcp]"),
        ("scipy", "rerank-listwise[eval]"),
        ("uvicorn", "rerank-listwise[http]"),
        ("torch.nn", "rerank-listwise\n"),
    ],
)
def test_missing_package_is_one_line_and_exit_code_2(
    module: str, requirement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    with pytest.raises(SystemExit) as ended:
        run(command)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert f"needs {module.partition('.')[0]}, which is not installed; install {requirement}" in printed


@pytest.mark.parametrize(("error", "code"), [(CheckpointError("of a model"), 1), (ConfigError("of a call"), 2)])
def test_model_that_cannot_be_loaded_has_another_exit_code_than_a_wrong_call(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(command)
    assert (ended.value.code, capsys.readouterr().err) == (code, f"error: {error}\n")


def test_missing_module_of_ours_is_a_bug() -> None:
    def command() -> None:
        raise ModuleNotFoundError("No module named 'rerank.none'", name="rerank.none")

    with pytest.raises(ModuleNotFoundError):
        run(command)
