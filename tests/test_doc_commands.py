"""Commands and snippets in the documentation and in messages work: flags exist, Python runs, requests are answered."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf import json_format, message_factory

from rerank.v1 import rerank_pb2 as pb
from tests.doc_pages import COMMANDS, FILLED_IN, blocks, commands, pages, parse_command

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index
    from tests.http_client import HttpClient

ROOT = Path(__file__).parent.parent
PAGES = pages()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"]
#: The addresses in the documentation.
ADDRESS, HTTP_ADDRESS = "127.0.0.1:50051", "127.0.0.1:8080"

ALL_COMMANDS = [(page.name, words) for page in PAGES for words in commands(page)]
SNIPPETS = [
    pytest.param(page.name, snippet, id=f"{page.name}-{number}")
    for page in PAGES
    for number, snippet in enumerate(blocks(page, "python"))
]


def shown_command(page: str, words: Sequence[str]) -> ParameterSet:
    """A test case; the help of the training commands and of some scripts imports torch, which is slow."""
    slow = words[0] == "python" or PROJECT["scripts"].get(words[0], "").startswith("rerank_training")
    return pytest.param(page, words, id=f"{page}-{words[0]}", marks=pytest.mark.slow if slow else ())


@cache
def help_of(*command: str) -> str:
    """What a command or a script prints for --help; it runs in this process, as a new one would import torch again."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*command, "--help"])
        patch.setattr(sys, "stdout", printed)
        patch.setenv("COLUMNS", "250")
        with pytest.raises(SystemExit) as ended:
            run_command(command[0])
    assert not ended.value.code
    printed.seek(0)
    return printed.read()


def run_command(name: str) -> None:
    """Runs a command of the package, or a script by its path or module, with the arguments in sys.argv."""
    if name in COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        getattr(importlib.import_module(module), function)()
    else:
        runpy.run_path(str(script(name)), run_name="__main__")


def script(name: str) -> Path:
    """The file of a script, which is given as scripts/NAME.py or, for `python -m`, as scripts.NAME."""
    if not name.startswith("scripts."):
        return ROOT / name
    path = ROOT / name.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def check_command(words: Sequence[str]) -> None:
    """Fails if a command of ours, a script, a make target, an extra or a flag does not exist."""
    first = words[0]
    if first in COMMANDS:
        parse_command(shlex.join(words))
    elif first == "python" and "grpc_tools.protoc" not in words:  # that one is run by test_proto.py
        name, *arguments = words[2:] if words[1] == "-m" else words[1:]
        assert script(name).is_file(), name
        flags = {word.partition("=")[0] for word in arguments if re.match(r"--\w", word)}
        offered = re.findall(r"--[\w-]+", help_of(name, *filter(str.isalpha, arguments[:1])))  # a subcommand, if any
        assert flags <= set(offered), f"{name} has no {sorted(flags - set(offered))}"
    elif first.startswith("scripts/"):
        assert (ROOT / first).is_file(), first
    elif first == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for word in words[1:]:
            pattern = rf"^{word.partition('=')[0]} \?=|\({word.partition('=')[0]}\)" if "=" in word else rf"^{word}:"
            assert re.search(pattern, makefile, re.MULTILINE), f"the Makefile has no {word}"
    elif first == "pip":
        extras = re.findall(r"\[([\w,]+)\]", " ".join(words))
        assert {extra for group in extras for extra in group.split(",")} <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(("page", "words"), [shown_command(page, words) for page, words in ALL_COMMANDS])
def test_every_shown_command_exists_with_its_flags(page: str, words: list[str]) -> None:
    check_command(words)


@dataclass(frozen=True)
class Service:
    """A service with an index, at addresses that replace the documentation's."""

    grpc: str
    http: HttpClient

    def here(self, text: str) -> str:
        return text.replace(ADDRESS, self.grpc).replace(HTTP_ADDRESS, self.http.address)


@pytest.fixture(scope="module")
def documented(checkpoint: Path, encoder: Encoder, index: Index) -> Iterator[Service]:
    """A service whose models have the names of the bundled ones."""
    from rerank.rankers.pe_rank import PERankRanker
    from tests.serving import http_service

    ranker = PERankRanker(checkpoint, encoder, "cpu")
    with http_service({"default": ranker, "pe-rank": ranker}, index) as served:
        yield Service(served.address, served.http)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_python_snippets_run(
    page: str,
    snippet: str,
    documented: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = compile(documented.here(snippet), page, "exec")
    if missing := [name for name in imports(snippet) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {missing}")
    if "CrossEncoder" in snippet:
        from tests.cross_encoders import write_cross_encoder

        write_cross_encoder(tmp_path / "cross-encoder" / "ms-marco-MiniLM-L6-v2", "bert")
        monkeypatch.chdir(tmp_path)
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out


def imports(snippet: str) -> set[str]:
    return set(re.findall(r"^(?:import|from) (\w+)", snippet, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"), [entry for entry in ALL_COMMANDS if entry[1][0] == "curl" and HTTP_ADDRESS in entry[1][1]]
)
def test_curl_requests_are_answered(page: str, words: list[str], documented: Service) -> None:
    path = words[1].partition(HTTP_ADDRESS)[2]
    header, _, value = words[words.index("-H") + 1].partition(": ")
    reply = documented.http.send("POST", path, words[words.index("-d") + 1].encode(), {header: value})
    assert reply.status == 200, reply.body
    assert reply.json


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"), [entry for entry in ALL_COMMANDS if entry[1][0] == "grpcurl" and "-d" in entry[1]]
)
def test_grpcurl_requests_are_answered(page: str, words: list[str], channel: grpc.Channel) -> None:
    method = SERVICE.methods_by_name[words[-1].rpartition("/")[2]]
    request, response = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
    call = channel.unary_unary(
        f"/{SERVICE.full_name}/{method.name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    payload = json_format.ParseDict(json.loads(words[words.index("-d") + 1]), request())
    assert call(payload, timeout=60).results


NAMES = "|".join(COMMANDS)
FOLDERS = ("rerank", "eval", "training", "deploy", "scripts")
#: A command in backquotes, or after "try:", "serve it:" and the like up to the next comma.
SUGGESTED = re.compile(rf"`((?:{NAMES})(?: [^`]+)?)`|(?:[a-z]: |, )((?:{NAMES}) [^`,;]+)")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the content of each text of a Python file that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else FILLED_IN for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def suggested(text: str) -> list[str]:
    return [quoted or bare for line in text.splitlines() for quoted, bare in SUGGESTED.findall(line)]


def test_commands_that_messages_suggest_can_be_given() -> None:
    """In one test, because reading all files would take each process a second before the first test."""
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    given = [(path, line, command) for path in files for line, text in texts(path) for command in suggested(text)]
    assert len(given) > 10
    problems = []
    for path, line, command in given:
        try:
            parse_command(command)
        except Exception as error:
            problems.append(f"{path.relative_to(ROOT)}:{line}: {command}: {type(error).__name__} {error}")
    assert not problems
