"""The figures in eval/expected/ are what the commands give."""

from pathlib import Path

import pytest
from rerank_eval.collections import open_collection

from rerank.retrieval.index import read_manifest
from scripts.reproduce.pin_figures import EXPECTED, expected, measured, measured_on_index

#: Where `make demo` leaves its index.
DEMO_INDEX = Path(__file__).parents[2] / "build" / "demo" / "index"
#: The largest difference of a figure when passages were encoded in bfloat16; .0026 was seen, by ties of ranks.
BFLOAT16_ROUNDING = 0.004


def check(name: str, found: tuple[dict[str, float], int], rounding: float = 0.0) -> None:
    figures, (values, queries) = expected(name), found
    assert queries == figures["queries"]
    for system, value in values.items():
        assert value == pytest.approx(figures["nDCG@10"][system], abs=figures["tolerance"] + rounding), (
            f"{system}: eval/expected/{name}.json has another figure; where a checkpoint changed on purpose, "
            f"`python -m scripts.reproduce.pin_figures --data DATA --work WORK --only {name}` writes the new one"
        )


def test_every_file_names_its_command_and_tolerance():
    for path in EXPECTED.glob("*.json"):
        found = expected(path.stem)
        assert found.keys() == {"data", "command", "queries", "tolerance", "nDCG@10"}, path.name
        assert 0 < found["tolerance"] < 0.01


@pytest.mark.shared
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["trec-dl-2019", "trec-dl-2021", "cranfield"])
def test_figures_on_shared_data(shared, tmp_path, name):
    check(name, measured(name, shared, tmp_path))


@pytest.mark.skipif(not DEMO_INDEX.exists(), reason="`make demo` makes the index that this measures on")
@pytest.mark.timeout(900)
def test_figures_on_pydoc(tmp_path):
    """Its text is the running Python's, so the figures hold for one version."""
    if (
        read_manifest(DEMO_INDEX).collection != expected("pydoc")["data"]
        or open_collection("pydoc").name not in expected("pydoc")["data"]
    ):
        pytest.skip(f"the figures are for {expected('pydoc')['data']}")
    rounding = 0.0 if read_manifest(DEMO_INDEX).encoder_dtype == "float32" else BFLOAT16_ROUNDING
    found = measured_on_index(DEMO_INDEX, "pydoc", list(expected("pydoc")["nDCG@10"]), tmp_path)
    check("pydoc", found, rounding)
