"""The table that `print` shows of a ranking."""

from __future__ import annotations

from rerank.util.text_table import TableRow, ranking_html, ranking_table


def test_table_has_rank_score_doc_id_and_text_without_trailing_blanks() -> None:
    table = ranking_table([TableRow(1.5, "d2", "A flea lives a year."), TableRow(-0.25, "d1", "")])
    assert table.splitlines() == [
        "rank  score  doc_id  text",
        "   1    1.5  d2      A flea lives a year.",
        "   2  -0.25  d1",
    ]
    assert ranking_table([]) == "no results"


def test_long_or_hostile_texts_stay_short_and_on_their_line() -> None:
    text = "first\nsecond\x1b[2J\u202e\x07 " + "x" * 10**6
    header, row = ranking_table([TableRow(0.0, "d\x1b" + "y" * 100, text)]).splitlines()
    assert len(header) < len(row) < 120
    assert row.isprintable()
    assert "first second [2J" in row
    assert row.endswith("…")


def test_html_has_the_same_rows_with_every_text_escaped() -> None:
    html = ranking_html([TableRow(1.5, "<b>", 'x < y & "z" <script>alert(1)</script>'), TableRow(-0.25, "d1", "")])
    assert html.count("<tr>") == 3
    assert "<td>1</td><td>1.5</td><td>&lt;b&gt;</td>" in html
    assert "x &lt; y &amp; &quot;z&quot; &lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert ranking_html([]) == "<p>no results</p>"
    assert "… and 990 more" in ranking_html([TableRow(float(-n), f"d{n}", "t") for n in range(1000)])
