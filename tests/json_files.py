"""Changes files with JSON."""

import json
from pathlib import Path


def change_json(path: Path, **changed: object) -> None:
    """Changes keys of a file with an object, which is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(content | changed), encoding="utf-8")
