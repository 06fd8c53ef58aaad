"""The folder of what the authors' own code gave."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def parity(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.config.getoption("--shared") / "reference" / "parity"
    if not folder.is_dir():
        pytest.skip(f"there is no folder {folder}")
    return folder
