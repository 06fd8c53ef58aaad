"""Groups texts of similar lengths into batches, and sequences on a GPU into few shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

#: Tokens of an encoder's batch on a CPU, with padding. Larger batches are not faster, and need more memory.
CPU_BATCH_TOKENS = 1024
#: Tokens of an encoder's batch on a GPU, with padding.
GPU_BATCH_TOKENS = 16_384
#: Lengths on a GPU are multiples of this: its matrix products compute 128 rows at a time anyway. 387 windows of DL 2019
#: have 315 lengths, or 13 padded ones with 3.6 % more tokens (`scripts.bench --only shapes`).
_GPU_LENGTH_MULTIPLE = 128


def batch_tokens(device_type: str) -> int:
    """Returns the number of tokens of an encoder's batch on a device, with padding."""
    return CPU_BATCH_TOKENS if device_type == "cpu" else GPU_BATCH_TOKENS


def gpu_length(length: int, longest: int) -> int:
    """Returns the padded length of a sequence of `length` tokens on a GPU, for a model that reads `longest` tokens."""
    return max(length, min(longest, -(-length // _GPU_LENGTH_MULTIPLE) * _GPU_LENGTH_MULTIPLE))


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yields batches of rows of texts with similar lengths in tokens, the longest first, so that little is padded."""
    rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while rows:
        size = max(1, batch_tokens // max(lengths[rows[0]], 1))
        yield rows[:size]
        rows = rows[size:]


def batches_of_equal_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yields batches of rows of 1, 2, 4, 8, … sequences of equal length, so that few shapes occur without padding."""
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    for length, rows in by_length.items():
        while rows:
            size = 2 ** (max(1, min(len(rows), batch_tokens // max(length, 1))).bit_length() - 1)
            yield rows[:size]
            rows = rows[size:]
