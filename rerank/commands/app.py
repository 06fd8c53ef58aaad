"""Typer applications of the installed commands: help in plain text, with examples; flags are fields of dataclasses."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperCommand

from rerank.util.validation import plain_words

R = TypeVar("R")

#: `context_settings` of a command that also accepts its flags and choices with underscores: --random_share.
UNDERSCORES_TOO = {"token_normalize_func": lambda name: name.replace("_", "-")}
#: Longer than any sentence, so that the list of commands shows whole sentences.
_MAX_HELP_CHARS = 1000
#: Largest number of columns of an example, which help indents by four.
_EXAMPLE_WIDTH = 76


class Command(TyperCommand):
    """A command that the list of commands shows with its first sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._check_flags(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:  # the message on a wrong value may be pydantic's
            error.message = plain_words(error.message)
            raise

    def _check_flags(self, ctx: Any, args: list[str]) -> None:
        """Raises: typer.BadParameter if a value follows a flag that takes none, unless the command has arguments."""
        options = [option for option in self.get_params(ctx) if hasattr(option, "is_flag")]
        if len(options) < len(self.get_params(ctx)):
            return
        flags = {
            name: option for option in options if option.is_flag for name in (*option.opts, *option.secondary_opts)
        }
        takes_value = {name for option in options if not option.is_flag for name in option.opts}
        for before, name, word in zip(["", *args], args, args[1:], strict=False):
            if name in flags and before not in takes_value and not word.startswith("-"):
                raise typer.BadParameter(f"it takes no value, given {word!r}", ctx, cast(Any, flags[name]))

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(_MAX_HELP_CHARS)


class CommandApp(typer.Typer):
    """A typer application of one command or several."""

    def __init__(self, add_completion: bool = False, **settings: Any) -> None:
        super().__init__(
            add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **settings
        )

    def command(  # type: ignore[override]
        self, name: str | None = None, *, example: str, cls: type[Command] = Command, **settings: Any
    ) -> Callable[..., Any]:
        """See typer.Typer.command. The help ends with the `example`; each of its lines is a command."""
        lines = "\n".join(f"  {part}" for line in example.strip().splitlines() for part in _parts(line))
        # A paragraph that begins with \b keeps its lines.
        return super().command(name, cls=cls, epilog=f"\b\nExample:\n{lines}", **settings)


def _parts(line: str) -> list[str]:
    """A line of an example, divided for a terminal of 80 columns: a comment above it, and continuation lines."""
    command, _, comment = (part.strip() for part in line.partition("  #"))
    if len(line) <= _EXAMPLE_WIDTH:
        return [line]
    words = textwrap.wrap(command, _EXAMPLE_WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False)
    continued = [f"{part} \\" for part in words[:-1]]
    return [*([f"# {comment}"] if comment else []), *continued, words[-1]]


def flags(*settings_types: type) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorates a function of settings dataclasses: it becomes a typer command with one flag for each field.

    A field is annotated with its help, `Annotated[type, "the help"]`, or with typer.Option(help=…) for limits and other
    options. Fields that a subclass adds come first in --help.
    """
    parameters = [parameter for settings_type in settings_types for parameter in _parameters(settings_type)]

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @wraps(function)
        def command(**values: Any) -> R:
            return function(*(_settings(settings_type, values) for settings_type in settings_types))

        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(settings_type: type) -> Iterator[Parameter]:
    """One keyword-only parameter per field, the fields of the class itself before those that it inherits."""
    hints = get_type_hints(settings_type, include_extras=True)
    own_fields = settings_type.__annotations__
    for setting in sorted(fields(settings_type), key=lambda setting: setting.name not in own_fields):
        annotation = _with_option(hints[setting.name])
        yield Parameter(setting.name, Parameter.KEYWORD_ONLY, default=_default(setting), annotation=annotation)


def _with_option(annotation: Any) -> Any:
    """The annotation of a field in typer's form, where the help is a part of an Option."""
    if isinstance(annotation.__metadata__[0], str):
        return Annotated[annotation.__origin__, typer.Option(help=annotation.__metadata__[0])]
    return annotation


def _settings(settings_type: type, values: dict[str, Any]) -> Any:
    return settings_type(**{setting.name: values[setting.name] for setting in fields(settings_type)})


def _default(setting: Field[Any]) -> Any:
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return Parameter.empty if setting.default is MISSING else setting.default
