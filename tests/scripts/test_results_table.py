"""The script of the results table refuses wrong calls; a real run takes an hour and data outside the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "results_table.sh"


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_wrong_calls_end_with_the_usage(tmp_path: Path) -> None:
    assert "scripts/reproduce/results_table.sh DATA OUT" in run_script().stderr
    done = run_script(tmp_path, tmp_path / "out")
    assert done.returncode == 2
    assert "trec-dl-2019/requests.jsonl" in done.stderr
    assert not (tmp_path / "out").exists()


def test_script_has_valid_syntax() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0
