"""The proof on a GPU runs without one, on tiny models, and reports what failed; its figures are not checked."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.bench import prove_on_gpu
from scripts.bench.gpu import Proof
from scripts.bench.timing import Values
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

PASSING = "import pytest\n\n@pytest.mark.gpu\ndef test_it():\n    assert {0}\n\ndef test_other():\n    assert False\n"


def write_tests(folder: Path, holds: bool) -> Path:
    """A test marked gpu that holds or fails, and another one."""
    path = folder / "test_it.py"
    path.write_text(PASSING.format(holds), encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_section_has_figures_on_tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = [tmp_path / "out", weights, "--tests", write_tests(tmp_path, holds=True)]
    result = CliRunner().invoke(prove_on_gpu.app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "out/gpu.json").read_text(encoding="utf-8"))
    assert written["device"].startswith("CPU")
    assert written["sections"].pop("Tests").startswith("1 passed, 1 deselected")
    assert written["sections"].keys() == prove_on_gpu.SECTIONS.keys()
    figures = [figure for section in written["sections"].values() for figure in section.values()]
    assert all(math.isfinite(figure["max"]) and figure["min"] <= figure["median"] for figure in figures)
    page = (tmp_path / "out/gpu.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in page for section in written["sections"].values() for name in section)


def test_failures_are_reported_and_do_not_end_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(proof: Proof) -> Values:
        raise RuntimeError("out of memory")

    sections = {"First": fails, "Second": lambda proof: {"figure": [1.0, 3.0, 2.0]}}
    monkeypatch.setattr(prove_on_gpu, "SECTIONS", sections)
    arguments = [str(tmp_path / "out"), "--tests", str(write_tests(tmp_path, holds=False))]
    result = CliRunner().invoke(prove_on_gpu.app, arguments)
    written = json.loads((tmp_path / "out/gpu.json").read_text(encoding="utf-8"))["sections"]
    assert result.exit_code == 1
    assert written["Tests"].startswith("FAILED: 1 failed, 1 deselected")
    assert written["First"] == "FAILED: RuntimeError('out of memory')"
    assert written["Second"] == {"figure": {"median": 2.0, "min": 1.0, "max": 3.0}}
