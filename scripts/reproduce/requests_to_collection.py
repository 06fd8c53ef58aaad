"""Makes a collection in BEIR layout of all passages in request files, for `build-lists --collection`.

python -m scripts.reproduce.requests_to_collection --out lists/dl-passages requests-2021.jsonl requests-2022.jsonl
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from rerank.readers.requests import read_requests
from rerank.util.files import atomic_folder


def main(
    requests: Annotated[list[Path], typer.Argument(help="RankLLM request files, JSONL.")],
    out: Annotated[Path, typer.Option(help="Folder to create.")],
) -> None:
    """Write corpus.jsonl with each passage once."""
    candidates = [c for path in requests for request in read_requests(path) for c in request.candidates]
    texts = {candidate.text: candidate.doc_id for candidate in reversed(candidates) if candidate.text}
    with atomic_folder(out) as folder:
        rows = (json.dumps({"_id": doc_id, "title": "", "text": text}) for text, doc_id in texts.items())
        (folder / "corpus.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{out}: {len(texts):,} passages from {len(requests)} files")


if __name__ == "__main__":
    typer.run(main)
