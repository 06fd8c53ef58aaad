"""Pages of the reference hold in the checkout what `make reference` writes."""

import pytest

from scripts.reference_pages import PAGES, with_tables


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_has_its_tables_as_they_are_now(page):
    text = page.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `make reference`"


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("settings.md", ["| `listen` | HOST:PORT", "| `max_candidates` |", "| `window_size` |", "| `sha256` |"]),
        ("http.md", ["| `POST /v2/rerank` |", "| `text_1` (required) |", "## RerankRequest"]),
        ("commands.md", ["### `rerank serve`", "* `--check`", "## `train-first`", "## `eval-beir`"]),
    ],
)
def test_tables_are_not_empty(page, rows):
    text = next(path for path in PAGES if path.name == page).read_text(encoding="utf-8")
    assert [row for row in rows if row not in text] == []
