"""Typer commands whose flags are the fields of a settings dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

S = TypeVar("S")

#: `context_settings` of a command that also accepts its flags and choices with underscores: --random_share.
UNDERSCORES_TOO = {"token_normalize_func": lambda name: name.replace("_", "-")}


def flags(settings_type: type[S]) -> Callable[[Callable[[S], None]], Callable[..., None]]:
    """Turns a function of a settings dataclass into a typer command with one flag per field.

    A field is annotated with `Annotated[type, typer.Option(help=…)]`. Fields that a subclass adds come first in --help.
    """
    hints = get_type_hints(settings_type, include_extras=True)
    own_fields = settings_type.__annotations__
    ordered = sorted(fields(settings_type), key=lambda setting: setting.name not in own_fields)  # type: ignore[arg-type]
    parameters = [
        Parameter(setting.name, Parameter.KEYWORD_ONLY, default=_default(setting), annotation=hints[setting.name])
        for setting in ordered
    ]

    def decorate(function: Callable[[S], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            function(settings_type(**values))

        command.__annotations__ = hints
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _default(setting: Field[Any]) -> Any:
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return Parameter.empty if setting.default is MISSING else setting.default
