"""The command `rerank`, run in the test's process."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rerank.commands.cli import main


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The message of a command that failed with one line on stderr."""
        assert self.code >= 2
        assert self.out == ""
        found = re.fullmatch(r"error: (.*)\n", self.err)
        assert found, self.err
        return found[1]


Command = Callable[..., Outcome]


@pytest.fixture
def rerank(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `rerank ARGS…` in this process."""

    def run(*args: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rerank", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin.encode()))))
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return Outcome(int(caught.value.code or 0), printed.out, printed.err)

    return run
