"""Kills `rerank index` at random moments, starts it again until the index is there, and reports the time that was lost.

python scripts/kill_index_build.py --within-s 3000 -- --collection million --out indexes/million --dense hnsw

What follows `--` are the arguments of `rerank index`. A kill is a SIGKILL to the process and its workers. It costs the
time since the last progress that was saved, and the time from the new start to the next progress.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import typer

_POLL_S = 0.1


def main(
    arguments: Annotated[list[str], typer.Argument(help="Arguments of `rerank index`.")],
    within_s: Annotated[float, typer.Option(help="The kills come within so many seconds of work.")],
    kills: Annotated[int, typer.Option(min=0, help="Number of kills.")] = 3,
    seed: Annotated[int, typer.Option(help="Another seed kills at other moments.")] = 0,
) -> None:
    """Build an index with kills, and print what they cost."""
    out = Path(arguments[arguments.index("--out") + 1])
    random = Random(seed)
    moments = sorted(random.uniform(0, within_s) for _ in range(kills))
    start_s, lost_s = time.monotonic(), 0.0
    for number, moment in enumerate([*moments, float("inf")]):
        cost_s, killed = _run(arguments, out.with_name(f"{out.name}.partial"), start_s + moment, resumed=number > 0)
        lost_s += cost_s
        if not killed:
            break
    total_s = time.monotonic() - start_s
    print(f"{number} kills: {total_s:.0f} s in all, of which {lost_s:.0f} s were lost ({lost_s / total_s:.1%})")


def _run(arguments: list[str], partial: Path, kill_at_s: float, resumed: bool) -> tuple[float, bool]:
    """Runs the command until its end or its kill; returns the time that was lost, and whether it was killed."""
    command = [sys.executable, "-m", "rerank.commands.cli", "index", *arguments]
    begun_s = progress_s = time.monotonic()
    before, startup_s = _progress(partial), 0.0
    with subprocess.Popen(command, start_new_session=True) as process:
        while process.poll() is None:
            time.sleep(_POLL_S)
            now_s = time.monotonic()
            if (after := _progress(partial)) != before:
                if resumed and not startup_s:
                    startup_s = now_s - begun_s
                before, progress_s = after, now_s
            if now_s > kill_at_s:
                os.killpg(process.pid, signal.SIGKILL)
                lost_s = now_s - progress_s
                print(f"killed after {now_s - begun_s:.0f} s, {lost_s:.1f} s after progress was saved", flush=True)
                return startup_s + lost_s, True
    if process.returncode:
        raise SystemExit(process.returncode)
    return startup_s, False


def _progress(partial: Path) -> tuple[object, ...]:
    """Changes whenever the build saves progress: a stage, a shard of vectors, a part of the approximate index."""
    saved = [partial / "stages.json", *sorted((partial / "index").glob("*.faiss"))]
    shards = partial / "shards"
    encoded = int(np.count_nonzero(np.fromfile(shards, np.float64))) if shards.is_file() else 0
    return encoded, *(path.stat().st_mtime_ns for path in saved if path.is_file())


if __name__ == "__main__":
    typer.run(main)
