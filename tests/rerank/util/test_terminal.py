"""The table that `print` shows of a ranking."""

from rerank.util.terminal import TableRow, ranking_table


def test_table_has_rank_score_doc_id_and_text_without_trailing_blanks():
    table = ranking_table([TableRow(1.5, "d2", "A flea lives a year."), TableRow(-0.25, "d1", "")])
    assert table.splitlines() == [
        "rank  score  doc_id  text",
        "   1    1.5  d2      A flea lives a year.",
        "   2  -0.25  d1",
    ]
    assert ranking_table([]) == "no results"


def test_long_or_hostile_texts_stay_short_and_on_their_line():
    text = "first\nsecond\x1b[2J\u202e\x07 " + "x" * 10**6
    header, row = ranking_table([TableRow(0.0, "d\x1b" + "y" * 100, text)]).splitlines()
    assert len(header) < len(row) < 120
    assert row.isprintable()
    assert "first second [2J" in row
    assert row.endswith("…")
