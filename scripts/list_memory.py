"""Measures memory and time of training lists that stay in their file, beside the same lists held in memory.

python scripts/list_memory.py --lists 20000 --out /tmp/lists.jsonl
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rerank_training.lists.files import read_lists
from rerank_training.lists.windows import TrainingWindows, WindowSampling

WORDS = [
    *("flea", "moon", "tide", "glacier", "desert", "violin"),
    *("search", "index", "ranking", "passage", "query", "model"),
]
PASSAGES, WORDS_OF_PASSAGE, WINDOW = 20, 100, 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def main(
    lists: Annotated[int, typer.Option(help="Number of lists of 20 passages with 100 words each.")] = 20_000,
    out: Annotated[Path, typer.Option(help="File of the lists; written if it does not exist.")] = Path("lists.jsonl"),
    windows: Annotated[int, typer.Option(help="Number of windows that are read in the order of a training.")] = 2_000,
    mode: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Write the lists and read them both ways, each in a process of its own."""
    if mode:
        print(json.dumps(measure(out, windows, in_memory=mode == "memory")))
        return
    if not out.exists():
        write(out, lists)
    size_mb = out.stat().st_size / 1e6
    found = {}
    for each in ("memory", "file"):
        command = [sys.executable, __file__, "--out", str(out), "--windows", str(windows), "--mode", each]
        found[each] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{out}: {size_mb:,.0f} MB\n\n| lists | memory, MB | share of the file | checking, s | ms per window |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for each, row in found.items():
        share = row["memory_mb"] / size_mb
        print(f"| in {each} | {row['memory_mb']:,.1f} | {share:.3f} | {row['check_s']:.1f} | {row['window_ms']:.2f} |")


def write(path: Path, lists: int) -> None:
    """Lists whose texts are random words."""
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(lists):
            passages = [
                {"doc_id": f"{number}-{place}", "text": " ".join(rng.choices(WORDS, k=WORDS_OF_PASSAGE))}
                for place in range(PASSAGES)
            ]
            row = {"query_id": str(number), "query": " ".join(rng.choices(WORDS, k=6)), "passages": passages}
            file.write(json.dumps(row | {"relevance": [rng.randrange(4) for _ in passages]}) + "\n")


def measure(path: Path, windows: int, in_memory: bool) -> dict[str, float]:
    """Growth of the largest resident memory of this process, time of the check, and CPU time per window."""
    before_mb = largest_memory_mb()
    start_s = time.process_time()
    lists = read_lists(path)
    check_s = time.process_time() - start_s
    if in_memory:
        lists = list(lists)
    dataset = TrainingWindows(lists, WindowSampling(WINDOW, WINDOW, 0.5), windows, seed=0)
    start_s = time.process_time()
    for number in range(windows):
        _ = dataset[number]
    window_ms = (time.process_time() - start_s) * 1000 / windows
    return {"memory_mb": largest_memory_mb() - before_mb, "check_s": check_s, "window_ms": window_ms}


def largest_memory_mb() -> float:
    """The largest resident memory of this process so far, as Linux gives it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) / 1000


if __name__ == "__main__":
    app()
