"""Sections of a proof that fail in all ways, and a device; they run in a process that does not import torch."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Iterator

from scripts.bench.proof.sections import Device, Row


def device() -> Iterator[Device]:
    yield Device("cpu", "CPU", "torch 2", flop_per_s=1e12, bytes_per_s=1e10)


def prove(section: str, *_: object) -> Iterator[Row]:
    yield from {"fails": fails, "measures": measures}[section]()


def measures() -> Iterator[Row]:
    yield Row("other figure", "2 ms")


def fails() -> Iterator[Row]:
    yield Row("figure", "1 ms")
    raise RuntimeError("out of memory")


def dies() -> Iterator[Row]:
    yield Row("figure", "1 ms")
    os._exit(3)


def warns() -> Iterator[Row]:
    logging.getLogger("rerank.models.compiled_layers").warning("the layers could not be compiled")
    yield Row("figure", "1 ms")


def sleeps() -> Iterator[Row]:
    """Its row has the number of a process that it started."""
    with subprocess.Popen(["sleep", "600"]) as child:
        yield Row("child", str(child.pid))
        time.sleep(600)
