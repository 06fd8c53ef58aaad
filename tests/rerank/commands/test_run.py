"""How a command ends: errors that a user can act on are one line, bugs keep their traceback."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile

import grpc
import pytest

from rerank.client.error_details import ServiceError
from rerank.commands.run import quiet_libraries, run
from rerank.errors import ConfigError, DeadlineExceeded, ModelServerUnavailable, SelfTestFailed


@pytest.mark.parametrize(
    ("module", "requirement"), [("mcp.server.stdio", "rerank-listwise[mcp]"), ("torch.nn", "rerank-listwise\n")]
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


class Answer(grpc.RpcError):
    """The end of a call with this status, without details."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self.code, self.details = (lambda: status), (lambda: "words")
        self.trailing_metadata = lambda: None


def from_service(status: grpc.StatusCode) -> ServiceError:
    return ServiceError(Answer(status), "host:1")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SelfTestFailed("of a model"), 1),
        (from_service(grpc.StatusCode.INTERNAL), 1),
        (ConfigError("of a call"), 2),
        (from_service(grpc.StatusCode.INVALID_ARGUMENT), 2),
        (from_service(grpc.StatusCode.UNAVAILABLE), 3),
        (ModelServerUnavailable("nobody"), 3),
        (DeadlineExceeded("late"), 4),
        (from_service(grpc.StatusCode.DEADLINE_EXCEEDED), 4),
        (from_service(grpc.StatusCode.RESOURCE_EXHAUSTED), 5),
    ],
)
def test_exit_code_says_who_has_to_act(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(command)
    assert (ended.value.code, capsys.readouterr().err) == (code, f"error: {error}\n")


@pytest.mark.parametrize(
    ("level", "of_libraries", "of_ours"),
    [("DEBUG", "DEBUG", "DEBUG"), ("INFO", "WARNING", "INFO"), ("WARNING", "WARNING", "WARNING")],
)
def test_libraries_log_warnings_alone_unless_the_log_is_for_debugging(
    level: str, of_libraries: str, of_ours: str
) -> None:
    names = ("rerank", "rerank_eval", "rerank_training")
    logging.getLogger().setLevel(level)
    quiet_libraries()
    found = [logging.getLogger(name).getEffectiveLevel() for name in ("faiss.loader", "httpx2", "any.other")]
    assert found == [logging.getLevelName(of_libraries)] * 3
    assert [logging.getLogger(f"{name}.x").getEffectiveLevel() for name in names] == [logging.getLevelName(of_ours)] * 3


def test_missing_module_of_ours_is_a_bug() -> None:
    def command() -> None:
        raise ModuleNotFoundError("No module named 'rerank.none'", name="rerank.none")

    with pytest.raises(ModuleNotFoundError):
        run(command)


def test_missing_temporary_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/none"])
    with pytest.raises(SystemExit):
        run(tempfile._get_default_tempdir)  # type: ignore[attr-defined]
    printed = capsys.readouterr().err
    assert printed.startswith("error: No usable temporary directory found")
    assert "give one that can be written in TMPDIR" in printed


def test_output_is_written_in_every_encoding() -> None:
    """Also a text of the command line that the locale cannot read."""
    command = (
        "import sys; from rerank.commands import run, options; run.run(lambda: print(options.typed_text(sys.argv[1])))"
    )
    environment = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    shown = subprocess.run(
        [sys.executable, "-c", command, "日本"], env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert shown == "\\u65e5\\u672c\n"
