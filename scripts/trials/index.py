"""A small index for the trials, so that searches take part in them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from scripts.load_test.requests import words

_PASSAGES, _CHARACTERS = 300, 300


def trial_index(folder: Path) -> Path:
    """The folder of an index of random passages; builds it unless it is there."""
    index = folder / "index"
    if not index.is_dir():
        draw, corpus = random.Random(0), folder / "collection"
        corpus.mkdir(parents=True, exist_ok=True)
        rows = ({"_id": f"p{number}", "title": "", "text": words(draw, _CHARACTERS)} for number in range(_PASSAGES))
        (corpus / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        command = [sys.executable, "-m", "rerank.commands.cli", "index"]
        arguments = ["--collection", str(corpus), "--out", str(index)]
        subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
    return index
