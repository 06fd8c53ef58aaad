"""Commands whose flags are the fields of a dataclass."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from rerank.commands.app import UNDERSCORES_TOO, CommandApp, flags
from rerank.commands.options import flag
from tests.doc_pages import COMMANDS


class Order(StrEnum):
    FIRST_STAGE = "first-stage"
    RANDOM = "random"


@dataclass(frozen=True)
class Common:
    out_file: Annotated[str, typer.Option(help="The file to write.")]
    seed: Annotated[int, "Randomness."] = 0


@dataclass(frozen=True)
class Settings(Common):
    order: Annotated[Order, typer.Option(help="Order.")] = Order.RANDOM
    names: Annotated[list[str], typer.Option(help="Repeatable.")] = field(default_factory=list)


def invoked(*arguments: str) -> tuple[Result, list[Settings]]:
    received: list[Settings] = []

    def command(settings: Settings) -> None:
        """Write a file."""
        received.append(settings)

    app = typer.Typer()
    app.command(context_settings=UNDERSCORES_TOO)(flags(Settings)(command))
    return CliRunner().invoke(app, arguments), received


def test_flags_become_an_instance_of_the_settings():
    _, received = invoked("--out-file", "a_b", "--seed", "3", "--names", "x_y", "--names", "z")
    assert received == [Settings("a_b", 3, Order.RANDOM, ["x_y", "z"])]


def test_help_shows_the_function_and_each_flag_with_hyphens_the_subclass_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = invoked("--help")[0].output
    assert "Write a file." in shown
    positions = [shown.index(flag) for flag in ("--order", "--names", "--out-file", "--seed")]
    assert positions == sorted(positions)
    assert "Randomness." in shown
    assert "_file" not in shown


def test_command_may_have_the_flags_of_several_dataclasses():
    @dataclass(frozen=True)
    class Other:
        name: Annotated[str, "Name."] = "none"

    app = typer.Typer()
    app.command()(flags(Settings, Other)(lambda *received: print(*received, sep="\n")))
    printed = CliRunner().invoke(app, ["--out-file", "a", "--name", "b"]).output.splitlines()
    assert printed == [str(Settings("a")), str(Other("b"))]


def test_value_of_a_flag_that_takes_none_is_named_with_the_flag():
    """The error was "Got unexpected extra argument (yes)"."""
    received: list[tuple[bool, str]] = []

    def command(name: str = "", check: Annotated[bool, flag("--check", "Only check.")] = False) -> None:
        received.append((check, name))

    app = CommandApp()
    app.command(example="x")(command)
    found = CliRunner().invoke(app, ["--check", "yes"])
    assert found.exit_code == 2
    assert "Invalid value for '--check': it takes no value, given 'yes'" in found.output
    for words in (["--check", "--name", "a"], ["--name", "a", "--check"], ["--name", "--check", "--check"]):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert received == [(True, "a"), (True, "a"), (True, "--check")]


def commands_below(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, *words, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_fits_80_columns(name):
    module, _, function = COMMANDS[name].partition(":")
    (app,) = getattr(importlib.import_module(module), function).args  # partial(run, app)
    for words in commands_below(typer.main.get_command(app)):
        shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, "--help"]).output
        assert "Usage:" in shown
        assert [line for line in shown.splitlines() if len(line) > 80] == [], words
