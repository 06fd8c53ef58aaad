"""Without the extra `pyterrier`."""

import importlib
import sys

import pytest

from rerank.errors import ConfigError


def test_missing_pyterrier_is_an_error_that_names_the_extra(monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pyterrier", None)
    monkeypatch.delitem(sys.modules, "rerank.integrations.pyterrier", raising=False)
    with pytest.raises(ConfigError, match=r"needs pyterrier, which is not installed; install .*\[pyterrier\]"):
        importlib.import_module("rerank.integrations.pyterrier")
