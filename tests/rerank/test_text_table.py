"""The table that `print` shows of a ranking."""

from __future__ import annotations

from rerank.text_table import ranking_table


def test_table_has_rank_score_doc_id_and_text_without_trailing_blanks() -> None:
    table = ranking_table([(1.5, "d2", "A flea lives a year."), (-0.25, "d1", "")])
    assert table.splitlines() == [
        "rank  score  doc_id  text",
        "   1    1.5  d2      A flea lives a year.",
        "   2  -0.25  d1",
    ]
    assert ranking_table([]) == "no results"


def test_long_list_is_cut_and_says_so() -> None:
    lines = ranking_table([(float(-n), f"d{n}", "t") for n in range(1000)]).splitlines()
    assert (len(lines), lines[-1]) == (12, "… and 990 more")
    assert not ranking_table([(float(-n), f"d{n}", "t") for n in range(10)]).endswith("more")


def test_long_or_hostile_texts_stay_short_and_on_their_line() -> None:
    text = "first\nsecond\x1b[2J\u202e\x07 " + "x" * 10**6
    header, row = ranking_table([(0.0, "d\x1b" + "y" * 100, text)]).splitlines()
    assert len(header) < len(row) < 120
    assert row.isprintable()
    assert "first second [2J" in row
    assert row.endswith("…")
