"""Writes docs/reference: settings, commands, statuses, metrics, HTTP, Python and packages, as the code states them.

    python scripts/write_reference.py            # rewrites the pages; a test fails while one is out of date

Descriptions are the docstrings and the help of the code, so that they are written once.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import typer
import typer.main
from pydantic import BaseModel

import rerank
from rerank import config, errors
from rerank.access.key_file import APIKey
from rerank.checkpoints.relevance import RelevanceCurve
from rerank.config.http import HttpConfig
from rerank.ports.http.dialects.options import Options
from rerank.ports.http.dialects.table import dialects
from rerank.ports.http.openapi import openapi
from rerank.ports.http.problem import HTTP_STATUS
from rerank.rankers.first_stage_correlation import CallerCorrelations
from rerank.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_WRITTEN = "*This page is written by `python scripts/write_reference.py` from the code.*"
#: Heading → the class with the settings. The settings that all models have are those of IdentityModel.
SETTINGS: dict[str, type[BaseModel]] = {
    "Service": config.ServiceConfig,
    "`models`: every model": config.IdentityModel,
    "`models`: `ranker: fusion`": config.FusionModel,
    "`models`: `ranker: pe-rank`": config.PERankModel,
    "`models`: `ranker: first`": config.FirstModel,
    "`models`: `ranker: generation`": config.GenerationModel,
    "`models`: `generation`": config.AnswerConfig,
    "`models`: `ranker: cross-encoder`": config.CrossEncoderModel,
    "`models`: `served_by`": config.ServedBy,
    "`models`: `ranker: api`": config.ApiModel,
    "`models`: `served_by` of `ranker: api`": config.RerankServers,
    "`models`: `prompt`": config.PromptConfig,
    "`models`: `interpolation`": config.InterpolationConfig,
    "`models`: `relevance`": RelevanceCurve,
    "`engine`": config.EngineConfig,
    "`limits`": config.Limits,
    "`http`": HttpConfig,
    "`telemetry`": config.TelemetryConfig,
    "`tls`": config.TLSConfig,
    "`connections`": config.ConnectionsConfig,
    "Keys file": APIKey,
}
_HELP_WIDTH = 100
#: What Prometheus adds to the names of metrics of a type.
_SUFFIXES = {"counter": "_total", "info": "_info"}
_MAPPING = "see below"
_ATTRIBUTE = re.compile(r"(\w+): ")


def main() -> None:
    """Writes the pages that are out of date."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / f"{name}.md").write_text(page(), encoding="utf-8")


def settings_page() -> str:
    """The settings of the YAML file of `rerank serve`: one table for each class."""
    sections = []
    for heading, settings in SETTINGS.items():
        is_one_ranker = heading.startswith("`models`: `ranker")
        of_all_models = config.IdentityModel.model_fields if is_one_ranker else {}
        rows = [row for name, *row in _settings_rows(settings) if name not in of_all_models]
        sections.append(
            f"## {heading}\n\n{_summary(settings)}\n\n{_table(['Setting', 'Type', 'Default', 'Meaning'], rows)}"
        )
    return _page("Settings", "The YAML file of `rerank serve --config FILE`.", sections)


def _settings_rows(settings: type[BaseModel]) -> Iterator[list[str]]:
    """Name, setting, type, default and meaning of each field. Raises: KeyError for a field without a description."""
    described = attributes(settings)
    schema = settings.model_json_schema()
    for name, field in settings.model_fields.items():
        meaning, _, default = described[name].partition(" Default: ")
        kind = _type(schema["properties"][name], schema)
        yield [
            name,
            f"`{name}`",
            kind,
            default.rstrip(".") or _default(field.default, field.is_required(), kind),
            meaning,
        ]


def _default(value: object, is_required: bool, kind: str) -> str:
    """The default of a setting whose description does not say it."""
    if is_required or value is None:
        return "required" if is_required else "none"
    return kind if kind == _MAPPING else f"`{value}`"


def attributes(of: type) -> dict[str, str]:
    """Name → text of the section "Attributes" in the docstrings of a class and of its bases, each in one line."""
    found: dict[str, str] = {}
    for each in reversed(of.__mro__):
        name = ""
        for line in inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2].splitlines():
            start = _ATTRIBUTE.match(line.removeprefix("    "))
            if start and not line.startswith(" " * 8):
                name = start[1]
                found[name] = line[start.end() + 4 :]
            elif name:
                found[name] += " " + line.strip()
    return {name: text.strip() for name, text in found.items()}


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The type of a setting in words, from its JSON schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = root["$defs"][name]
        return _type(target, root) if "enum" in target else _MAPPING
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each, root) for each in schema["anyOf"] if each != {"type": "null"}))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], root)}" if "items" in schema else "list"
    names = {
        "string": "text",
        "integer": "integer",
        "number": "number",
        "boolean": "true or false",
        "object": "mapping",
    }
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[key]:,}" for key, sign in bounds.items() if key in schema]
    return ", ".join([names.get(str(schema.get("type")), _MAPPING), *limits])


def commands_page() -> str:
    """The help of every command."""
    sections = [
        f"## `{name}`\n\n```text\n{_help(command, name)}\n```"
        for program, path in PROJECT["scripts"].items()
        for name, command in _commands(program, typer.main.get_command(_app(path.partition(":")[0])))
    ]
    return _page("Commands", "What `--help` prints.", sections)


def _app(module: str) -> typer.Typer:
    app: typer.Typer = importlib.import_module(module).app
    return app


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command, or all of its subcommands, by their whole names."""
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        yield name, command
    for each, subcommand in subcommands.items():
        yield from _commands(f"{name} {each}", subcommand)


def _help(command: Any, name: str) -> str:
    context = typer.Context(command, info_name=name, terminal_width=_HELP_WIDTH, max_content_width=_HELP_WIDTH)
    return str(command.get_help(context)).rstrip()


def statuses_page() -> str:
    """The statuses and the reason of each exception."""
    rows = [
        [
            f"`{error.grpc_status}`",
            str(HTTP_STATUS[grpc.StatusCode[error.grpc_status]].value),
            f"`{error.reason}`",
            f"`{error.__name__}`",
            _summary(error),
        ]
        for error in errors.RerankError.__subclasses__()
        if error.__module__ == errors.__name__
    ]
    bug = ["`INTERNAL`", "500", "`BUG`", "any other", "A bug of the service; its log has the details."]
    text = "The gRPC status of each exception, its HTTP status, and the `reason` of its `google.rpc.ErrorInfo`."
    return _page("Statuses", text, [_table(["gRPC", "HTTP", "Reason", "Exception", "When"], [*rows, bug])])


def metrics_page() -> str:
    """The metrics of the service by their names on the page of Prometheus."""
    service = Mock(**{"models.return_value": []}, correlations=CallerCorrelations())
    service.vector_cache.hits = service.vector_cache.misses = 0
    metrics = Metrics(service, Mock(number=0))
    rows = []
    for metric in metrics.registry.collect():
        if metric.name.startswith("rerank"):
            name = metric.name + _SUFFIXES.get(metric.type, "")
            labels = getattr(metrics.registry._names_to_collectors.get(metric.name), "_labelnames", ())
            rows.append([f"`{name}`", metric.type, ", ".join(f"`{label}`" for label in labels), metric.documentation])
    table = _table(["Metric", "Type", "Labels", "Meaning"], rows)
    return _page("Metrics", "See [deploy and observe](../guide/deploy.md#metrics).", [table])


def http_page() -> str:
    """The paths of the HTTP port, and the fields of their requests and replies."""
    document = openapi(dialects(Mock()))
    paths = [
        [f"`{method.upper()} {path}`", operation["summary"]]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    statuses = [
        [code, response["description"]]
        for code, response in document["paths"]["/rerank"]["post"]["responses"].items()
        if code != "200"
    ]
    schemas, shared = document["components"]["schemas"], Options.model_fields.keys()
    ignored = ", ".join(f"`{name}`" for name in sorted(Options.no_effect))
    sections = [
        _table(["Path", "Purpose"], paths),
        _table(["Status", "When"], statuses),
        f"A request may have {ignored} without effect, if these are not fields of its own. Their names come back in "
        "`x-rerank-warnings`.",
    ]
    for name, schema in {"Options": Options.model_json_schema(), **schemas}.items():
        fields = schema.get("properties", {})
        has_options = name != "Options" and shared <= fields.keys()
        rows = [
            [f"`{field}`", _type(each, {"$defs": schemas}), each.get("description", "")]
            for field, each in fields.items()
            if not (has_options and field in shared)
        ]
        description = schema.get("description", "").partition("\n")[0]
        sections.append(f"## {name}\n\n{description}")
        if rows:
            sections.append(_table(["Field", "Type", "Meaning"], rows))
        if has_options:
            sections.append("The fields of [Options](#options), too.")
    text = "See [serve behind my search](../guide/serve.md); `GET /openapi.json` has the whole document."
    return _page("HTTP", text, sections)


def python_page() -> str:
    """The public names of the package with their signatures and docstrings."""
    sections = []
    for name in sorted(set(rerank.__all__) - {"__version__"}):
        value = getattr(rerank, name)
        sections.append(f"## `{name}`\n\n{_documented(name, value)}")
        if inspect.isclass(value) and not issubclass(value, BaseException):
            methods = [
                (each, method)
                for each, method in vars(value).items()
                if not each.startswith("_") and inspect.isfunction(method)
            ]
            sections += [f"### `{name}.{each}`\n\n{_documented(each, method)}" for each, method in methods]
    return _page("Python", "The names of the package `rerank`.", sections)


def packages_page() -> str:
    """The packages of the source with the first lines of their docstrings."""
    rows = []
    for folder in ("rerank", "eval", "training", "scripts"):
        for package in sorted((ROOT / folder).rglob("__init__.py")):
            if docstring := ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))):
                path = package.parent.relative_to(ROOT).as_posix()
                rows.append([f"[`{path}/`](../../{path})", docstring.partition("\n")[0]])
    text = "The folders of the source. The first line of each file says what the file is or does."
    return _page("Packages", text, [_table(["Folder", "Content"], rows)])


def _documented(name: str, value: Any) -> str:
    """The signature and the docstring as a block of code; the fields of settings are in settings.md."""
    is_settings = inspect.isclass(value) and issubclass(value, BaseModel)
    signature = name if is_settings else f"{name}{inspect.signature(value)}"
    return f"```text\n{signature}\n\n{inspect.getdoc(value) or ''}\n```"


def _summary(of: type) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def _page(title: str, introduction: str, sections: Sequence[str]) -> str:
    return "\n\n".join([f"# {title}", introduction, _WRITTEN, *sections]) + "\n"


#: Name of the page → the function that writes it.
PAGES: dict[str, Callable[[], str]] = {
    "settings": settings_page,
    "commands": commands_page,
    "statuses": statuses_page,
    "metrics": metrics_page,
    "http": http_page,
    "python": python_page,
    "packages": packages_page,
}

if __name__ == "__main__":
    main()
