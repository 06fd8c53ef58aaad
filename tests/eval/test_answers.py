"""A killed run goes on where it was, and only with the settings that it began with."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_eval.answers import Answer, AnswerFile, Reply

from rerank.errors import ConfigError


def answer(query_id: str) -> Answer:
    reply = Reply(("a", "b"), (2.0, 1.5), (1, 0), {"windows": 1, "strategy": "sliding(20/10)"})
    return Answer(query_id, 12.5, 1000.0, reply)


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.jsonl"
    AnswerFile(path, {"depth": 100}).add(answer("q"))
    assert AnswerFile(path, {"depth": 100}).answers == {"q": answer("q")}


def test_a_line_that_was_cut_off_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = AnswerFile(path, {})
    file.add(answer("q1"))
    file.add(answer("q2"))
    path.write_bytes(path.read_bytes()[:-20])
    resumed = AnswerFile(path, {})
    assert list(resumed.answers) == ["q1"]
    resumed.add(answer("q2"))
    assert list(AnswerFile(path, {}).answers) == ["q1", "q2"]


def test_a_header_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"settin', encoding="utf-8")
    AnswerFile(path, {"depth": 1}).add(answer("q"))
    assert list(AnswerFile(path, {"depth": 1}).answers) == ["q"]


def test_other_settings_are_refused_with_both_values(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    AnswerFile(path, {"depth": 100, "seed": 0}).add(answer("q"))
    with pytest.raises(
        ConfigError, match=r"1 answers under other settings \(depth: 100 there, 50 now\); choose another"
    ):
        AnswerFile(path, {"depth": 50, "seed": 0})


def test_a_setting_that_is_new_is_another_setting(tmp_path: Path) -> None:
    AnswerFile(tmp_path / "trace.jsonl", {})
    with pytest.raises(ConfigError, match="seed: None there, 1 now"):
        AnswerFile(tmp_path / "trace.jsonl", {"seed": 1})


@pytest.mark.parametrize("text", ["not json\n", "[]\n", '{"other": 1}\n', '{"settings": {}}\n{"query_id": "q"}\n'])
def test_foreign_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="is no file of answers"):
        AnswerFile(tmp_path / "trace.jsonl", {})


def test_finished_file_is_in_the_order_of_the_queries(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    resumed, undisturbed = AnswerFile(path, {}), AnswerFile(tmp_path / "other.jsonl", {})
    for query_id in ("q2", "q1"):
        resumed.add(answer(query_id))
    for query_id in ("q1", "q2"):
        undisturbed.add(answer(query_id))
    resumed.finish(["q1", "q2"])
    assert path.read_text(encoding="utf-8") == (tmp_path / "other.jsonl").read_text(encoding="utf-8")


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        AnswerFile(tmp_path / "file" / "trace.jsonl", {})
