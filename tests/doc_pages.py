"""The pages of the documentation."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def pages() -> list[Path]:
    """The pages that people write and read."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md"]
    return [*first, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "scripts").glob("*/README.md"))]
