"""docs/reference is what the code says."""

from __future__ import annotations

import pytest

from scripts import write_reference


@pytest.mark.parametrize("name", write_reference.PAGES)
def test_page_is_up_to_date(name: str) -> None:
    page = (write_reference.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert page == write_reference.PAGES[name](), "run `python scripts/write_reference.py`"
