"""Groups texts of similar lengths into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

#: Tokens that an encoder reads together, with padding. On a CPU more gain nothing, and need more memory.
BATCH_TOKENS = 1024


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yields batches of texts of similar lengths in tokens, the longest first, so that little is padded."""
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rows:
        size = max(1, batch_tokens // max(lengths[rows[0]], 1))
        yield rows[:size]
        rows = rows[size:]
