"""The rows of a proof's table, and the device that they are compared with. Free of torch, which takes seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A row of the table; the floor and the ratio to it are left out where there is none."""

    what: str
    measured: str
    floor: str = ""
    ratio: str = ""
    has_failed: bool = False

    def __str__(self) -> str:
        cells = (self.what, self.measured, self.floor, self.ratio)
        return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


@dataclass(frozen=True)
class Device:
    """A device and what it does at best.

    Attributes:
        kind: cuda or cpu.
        name: of the GPU.
        versions: of torch and transformers.
        flop_per_s: of a large matrix product, in bfloat16 on a GPU.
        bytes_per_s: that a copy within its memory reads and writes.
    """

    kind: str
    name: str
    versions: str
    flop_per_s: float
    bytes_per_s: float


def failed(what: str, why: str) -> Row:
    return Row(what, f"FAILED: {' '.join(why.split())[:300]}", has_failed=True)


def timed(what: str, ms: float, floor_ms: float = 0.0, note: str = "") -> Row:
    """A row with a time; 0: there is no floor."""
    if not floor_ms:
        return Row(what, f"{_digits(ms)} ms{note}")
    return Row(what, f"{_digits(ms)} ms{note}", f"{_digits(floor_ms)} ms", f"{ms / floor_ms:.2f}")


def rate(what: str, tokens_per_s: float, most: float, note: str = "") -> Row:
    """A row with tokens per second, and the most that the device allows."""
    return Row(what, f"{tokens_per_s:,.0f} tokens/s{note}", f"{most:,.0f} tokens/s", f"{most / tokens_per_s:.2f}")


def _digits(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
