"""The embedded collection `pydoc`: the docstrings of the running interpreter's standard library.

It is real text that every machine with Python has, so that no repository needs to store it. Each module, class,
function and method with a docstring is one passage, whose `doc_id` is the qualified name
(`datetime.datetime.strptime`, `itertools.chain`, `builtins.str.split`).
"""

from __future__ import annotations

import importlib
import inspect
import json
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rerank.readers.qrels import Qrel, read_qrels
from rerank.readers.queries import read_queries
from rerank.types import Passage, Query

#: Modules whose import has side effects (opens a browser or a window, prints a poem) or that repeat others' text.
_NO_DOCUMENTATION = {
    "antigravity", "genericpath", "idlelib", "nt", "ntpath", "posix", "posixpath", "pydoc_data", "test", "this",
    "tkinter", "turtle", "turtledemo",
}  # fmt: skip
#: Modules that some supported platforms or versions lack (PEP 594, PEP 632, removals in 3.12).
_NOT_EVERYWHERE = {
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "curses", "distutils", "imghdr",
    "imp", "lib2to3", "mailcap", "msilib", "msvcrt", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr",
    "spwd", "sunau", "telnetlib", "uu", "winreg", "winsound", "xdrlib",
}  # fmt: skip
_SKIPPED_MODULES = _NO_DOCUMENTATION | _NOT_EVERYWHERE

#: Submodules that programmers import by their dotted name. The other submodules are left out, as most are internal.
_SUBMODULES = (
    "collections.abc", "concurrent.futures", "email.message", "email.mime.multipart", "email.mime.text", "email.policy",
    "email.utils", "html.entities", "html.parser", "http.client", "http.cookiejar", "http.cookies", "http.server",
    "importlib.metadata", "importlib.resources", "importlib.util", "json.decoder", "json.encoder", "logging.config",
    "logging.handlers", "multiprocessing.pool", "multiprocessing.shared_memory", "os.path", "unittest.mock",
    "urllib.error", "urllib.parse", "urllib.request", "urllib.robotparser", "wsgiref.simple_server", "xml.dom.minidom",
    "xml.etree.ElementTree", "xml.sax.saxutils", "xmlrpc.client", "xmlrpc.server",
)  # fmt: skip

#: Passages have docstrings of at least this many words: shorter ones, such as "Return self.", add nothing to the name.
_MIN_DOCSTRING_WORDS = 3
#: Docstrings are cut to this many words, about the length of an MS MARCO passage.
_MAX_DOCSTRING_WORDS = 60
_MAX_SIGNATURE_CHARS = 80
#: The memory address in the repr of a default value, which changes from run to run.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def name() -> str:
    """The collection's name with the Python version, because its text depends on that."""
    return f"pydoc-{platform.python_version()}"


def passages() -> Iterator[Passage]:
    """Yields one passage per documented name of the standard library, ordered by module.

    A child process reads them, because libraries patch the standard library (torch replaces `inspect.getfile`) and a
    service should not import all of it.
    """
    program = f"from {__name__} import print_passages; print_passages()"
    process = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    for line in process.stdout.splitlines():
        doc_id, text = json.loads(line)
        yield Passage(doc_id, text)


def queries() -> list[Query]:
    """The hand-written queries of the collection."""
    return read_queries(Path(__file__).with_name("pydoc_queries.jsonl"))


def qrels() -> list[Qrel]:
    """The relevance judgements of `queries`: 2 answers the query, 1 is useful, 0 is neither."""
    return read_qrels(Path(__file__).with_name("pydoc_qrels.txt"))


def print_passages() -> None:
    """Prints [doc_id, text] of each passage as one line of ASCII JSON."""
    seen: set[str] = set()
    for name in _module_names():
        module = _import_quietly(name)
        for passage in _module_passages(name, module) if module else ():
            if passage.doc_id not in seen:
                seen.add(passage.doc_id)
                print(json.dumps([passage.doc_id, passage.text]))


def _module_names() -> list[str]:
    public = [name for name in sys.stdlib_module_names if not name.startswith("_") and name not in _SKIPPED_MODULES]
    return sorted([*public, *_SUBMODULES])


def _import_quietly(name: str) -> ModuleType | None:
    """Imports a module; None if this platform or build lacks it (`winreg`, `dbm.gnu`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def _module_passages(name: str, module: ModuleType) -> Iterator[Passage]:
    yield from _passage(name, f"module {name}", module)
    for attribute in _public_names(module):
        member = getattr(module, attribute, None)
        if not _belongs_to(member, name, module):
            continue
        if inspect.isclass(member):
            yield from _class_passages(name, attribute, member)
        elif inspect.isroutine(member):
            yield from _passage(
                f"{name}.{attribute}", f"function {attribute}{_signature(member)} in module {name}", member
            )


def _public_names(module: ModuleType) -> list[str]:
    exported = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    return sorted(set(exported))


def _belongs_to(member: Any, name: str, module: ModuleType) -> bool:
    """Membership in the documentation of a module: `member` is exported by it or defined in it."""
    if getattr(member, "__name__", None) in getattr(module, "__all__", ()):
        return True
    return getattr(member, "__module__", None) in {name, f"_{name}", None}


def _class_passages(module: str, name: str, cls: type) -> Iterator[Passage]:
    yield from _passage(f"{module}.{name}", f"class {name} in module {module}", cls)
    for attribute, member in sorted(vars(cls).items()):
        function = inspect.unwrap(member.__func__) if isinstance(member, classmethod | staticmethod) else member
        if not attribute.startswith("_") and inspect.isroutine(function):
            heading = f"method {attribute}{_signature(function)} of class {name} in module {module}"
            yield from _passage(f"{module}.{name}.{attribute}", heading, function)


def _passage(qualified_name: str, heading: str, member: Any) -> Iterator[Passage]:
    docstring = inspect.cleandoc(member.__doc__) if isinstance(member.__doc__, str) else ""
    if len(docstring.split()) >= _MIN_DOCSTRING_WORDS:
        yield Passage(doc_id=qualified_name, text=f"{heading}\n{_beginning(docstring)}")


def _beginning(docstring: str) -> str:
    """The first words of a docstring, with their line breaks."""
    match = re.match(rf"(?:\s*\S+){{0,{_MAX_DOCSTRING_WORDS}}}", docstring)
    return match[0] if match else ""


def _signature(member: Any) -> str:
    try:
        signature = _ADDRESS.sub("", str(inspect.signature(member)))
        return signature if len(signature) <= _MAX_SIGNATURE_CHARS else "(…)"
    except (TypeError, ValueError, AttributeError, NameError):  # raised by C functions whose text signature is invalid
        return ""
