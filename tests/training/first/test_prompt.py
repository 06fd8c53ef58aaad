"""Prompt settings of a FIRST training: the flags, the manifest of the base, and the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import PromptSettings
from rerank_training.first.training import prompt_settings

from rerank.checkpoints import bundled
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import load_template


def settings(base: Path, **flags: object) -> PromptSettings:
    return prompt_settings(FirstArguments(lists="lists.jsonl", base=str(base), **flags))  # type: ignore[arg-type]


def test_base_with_a_manifest_gives_its_own_settings() -> None:
    template = load_template("first_smollm2")
    found = settings(bundled.FIRST)
    assert found.template.sha256 == template.sha256
    assert (found.identifiers, found.window_size, found.passage_tokens) == (IdentifierKind.LETTERS, 20, 48)


def test_flag_that_differs_is_used_with_a_warning_that_names_both_values(caplog: pytest.LogCaptureFixture) -> None:
    found = settings(bundled.FIRST, template="first", identifiers="numbers", window_size=10, passage_tokens=0)
    assert found == PromptSettings(load_template("first"), IdentifierKind.NUMBERS, 10, 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition(", so it")[0].partition(",")[0] for message in warnings] == [
        f"--template first ({load_template('first').sha256[:12]}): the base was trained with "
        f"{bundled.FIRST / 'template.yaml'} ({load_template('first_smollm2').sha256[:12]})",
        "--identifiers numbers: the base was trained with letters",
        "--window-size 10: the base was trained with 20",
        "--passage-tokens 0: the base was trained with 48",
    ]
