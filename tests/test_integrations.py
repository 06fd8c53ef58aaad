"""Each integration can be deleted, with its tests and its entry points: nothing else names it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
INTEGRATIONS = sorted(
    part.name for part in (ROOT / "rerank" / "integrations").iterdir() if (part / "__init__.py").is_file()
)


def test_nothing_else_names_an_integration() -> None:
    named = re.compile(rf"rerank[./]integrations([./]({'|'.join(INTEGRATIONS)})| import)")
    folders = ("rerank", "eval", "training", "scripts", "tests")
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        if "integrations" not in path.relative_to(ROOT).parts and path != Path(__file__):
            assert not named.search(path.read_text(encoding="utf-8")), path
