"""`rerank` whose model identity raises in each pass as soon as a file exists: a stand-in for a model that breaks.

python -m scripts.trials.raising_model FILE serve --config CONFIG
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rerank.commands.cli import main
from rerank.rankers.identity import IdentityRanker
from rerank.types import EncodedWindow, WindowRanking

_rank = IdentityRanker.rank
_fault = Path(sys.argv.pop(1))


def _raising(self: IdentityRanker, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
    if _fault.exists():
        raise RuntimeError("the trial has broken the model")
    return _rank(self, windows)


if __name__ == "__main__":
    IdentityRanker.rank = _raising  # type: ignore[method-assign]
    main()
