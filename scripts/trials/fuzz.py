"""Fuzz: mutated requests over both RPCs, and garbage. None may be answered as a bug or change an answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rerank.v1 import rerank_pb2 as pb
from scripts.service import Service, connect, running_service
from scripts.trials.calls import Target, status_of
from scripts.trials.index import trial_index
from scripts.trials.options import WORK, Seed, Work
from scripts.trials.references import Reference, call, references, rerank_messages, search_messages
from scripts.trials.table import counts

#: Identity comes first, so that it answers the many requests whose model was changed to none.
_MODELS = [{"name": name, "ranker": name} for name in ("identity", "pe-rank", "first")]
_IN_FLIGHT = 32
_TIMEOUT_S = 60.0
#: Growth counts after so many requests, which fill caches and thread pools.
_WARM_UP = 5000
_CHECK_EVERY = 10_000
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NUMBERS = (0, 1, -1, 2, 7, 200, 1001, 2**31 - 1, -(2**31))
_FLOATS = (0.0, -1.0, 0.5, 1e308, -1e308, float("nan"), float("inf"), 1e-320)
_TEXTS = (
    "",
    " ",
    "\0",
    "a" * 600,
    "\u202e\ud7ff\U0010ffff",
    "d0",
    "<|im_end|>",
    "[1] > [2]",
    "identity",
    "nöne",
    "x\ny",
)


@dataclass
class FuzzReport:
    """Statuses of the calls, number of changed answers, and growth of memory after the warm-up."""

    statuses: Counter[str] = field(default_factory=Counter)
    garbage_statuses: Counter[str] = field(default_factory=Counter)
    changed_answers: int = 0
    growth_mb: float = 0.0

    def lines(self) -> Iterator[str]:
        """The report, for a reader."""
        for name, statuses in (("mutated requests", self.statuses), ("garbage", self.garbage_statuses)):
            yield f"{statuses.total()} {name}: {counts(statuses)}"
        yield f"{self.changed_answers} changed answers; resident memory grew by {self.growth_mb:.0f} MB"


def fuzz(
    requests: Annotated[int, typer.Option(help="Mutated requests.")] = 100_000,
    garbage: Annotated[int, typer.Option(help="Garbage payloads and connections.")] = 5000,
    work: Work = WORK,
    seed: Seed = 0,
) -> None:
    """Mutated requests over both RPCs, and garbage in place of messages and of frames."""
    for line in asyncio.run(_fuzz(work, requests, garbage, seed)).lines():
        print(line)


async def _fuzz(work: Path, requests: int, garbage: int, seed: int) -> FuzzReport:
    """Sends mutated requests, so many, and garbage payloads and frames, so many, to a service with default models."""
    draw, report = random.Random(seed), FuzzReport()
    settings = {"index": str(trial_index(work)), "models": _MODELS}
    with running_service(settings) as service:
        async with Target(service.address) as target:
            channel, stub = target.channel, target.stub
            known = await references(stub, [*rerank_messages(draw), *search_messages(draw)])
            cheap = [each.message for each in known if each.message.model == "identity"]
            before_mb = service.resident_mb()
            for first in range(0, requests, _CHECK_EVERY):
                number = min(_CHECK_EVERY, requests - first)
                models = [each.message for each in known]
                made = (mutated(draw, draw.choice(models if draw.random() < 0.02 else cheap)) for _ in range(number))
                if first == 0:
                    report.statuses += await _send_all(channel, [next(made) for _ in range(min(_WARM_UP, number))])
                    before_mb = service.resident_mb()
                report.statuses += await _send_all(channel, list(made))
                report.changed_answers += await _changed(stub, known)
            payloads = [(_method(draw), draw.randbytes(draw.choice([0, 1, 5, 100, 5000]))) for _ in range(garbage // 2)]
            report.garbage_statuses += await _send_all(channel, payloads)
            report.garbage_statuses["connection closed"] = await _send_frames(service, draw, garbage - garbage // 2)
            report.changed_answers += await _changed(stub, known)
            report.growth_mb = service.resident_mb() - before_mb
    return report


def mutated(draw: random.Random, message: Message) -> tuple[str, bytes]:
    """The method and the bytes of a message after one to four random changes of its fields or of its bytes."""
    changed = type(message)()
    changed.CopyFrom(message)
    if draw.random() < 0.6:
        for _ in range(draw.randint(1, 4)):
            with contextlib.suppress(ValueError):  # a value that the field cannot hold
                _change_field(draw, changed)
        return _method_of(message), changed.SerializeToString()
    data = changed.SerializeToString()
    for _ in range(draw.randint(1, 4)):
        data = _change_bytes(draw, data)
    return _method_of(message), data


def _change_bytes(draw: random.Random, data: bytes) -> bytes:
    """The data with a byte replaced, some inserted, some removed, or its end repeated."""
    place, size = draw.randrange(len(data) + 1), draw.randint(1, 20)
    head, tail = data[:place], data[place:]
    return draw.choice(
        [head + draw.randbytes(1) + tail[1:], head + draw.randbytes(size) + tail, head + tail[size:], data + tail]
    )


def _change_field(draw: random.Random, message: Message) -> None:
    """Changes a random field of a message, or of a message inside it."""
    descriptor: Any = draw.choice(message.DESCRIPTOR.fields)
    value: Any = getattr(message, descriptor.name)
    if descriptor.is_repeated:
        _change_list(draw, message, descriptor.name)
    elif descriptor.message_type is not None:
        _change_field(draw, value)
    elif descriptor.type == FieldDescriptor.TYPE_STRING:
        setattr(message, descriptor.name, draw.choice([*_TEXTS, value * 2, value[: len(value) // 2]]))
    elif descriptor.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        setattr(message, descriptor.name, draw.choice(_FLOATS))
    else:
        setattr(message, descriptor.name, draw.choice(_NUMBERS))


def _change_list(draw: random.Random, message: Message, name: str) -> None:
    """Removes, repeats or changes an element of a list of messages."""
    elements: Any = getattr(message, name)
    if not elements or draw.random() < 0.2:
        elements.add()
        return
    place, change = draw.randrange(len(elements)), draw.random()
    if change < 0.2:
        del elements[place:]
    elif change < 0.4:
        elements.add().CopyFrom(elements[place])
    else:
        _change_field(draw, elements[place])


def _method_of(message: Message) -> str:
    return f"/rerank.v1.RerankService/{'Search' if isinstance(message, pb.SearchRequest) else 'Rerank'}"


def _method(draw: random.Random) -> str:
    return draw.choice(["/rerank.v1.RerankService/Rerank", "/rerank.v1.RerankService/Search"])


async def _send_all(channel: grpc.aio.Channel, calls: list[tuple[str, bytes]]) -> Counter[str]:
    """The statuses of these calls (method and bytes); a few are in flight at a time."""
    statuses, waiting = Counter[str](), iter(calls)

    async def send() -> None:
        for method, data in waiting:
            send_bytes: Any = channel.unary_unary(method)  # sends bytes as they are
            statuses[await status_of(send_bytes(data, timeout=_TIMEOUT_S))] += 1

    await asyncio.gather(*(send() for _ in range(_IN_FLIGHT)))
    return statuses


async def _send_frames(service: Service, draw: random.Random, number: int) -> int:
    """Sends garbage on so many connections, most of it after the preface of HTTP/2; returns how many were made."""
    for _ in range(number):
        _, writer = await connect(service.address)
        frames = (
            draw.randrange(40).to_bytes(3, "big") + draw.randbytes(6) + draw.randbytes(draw.randrange(60))
            for _ in range(draw.randint(1, 5))
        )
        with contextlib.suppress(ConnectionError):
            writer.write((_PREFACE if draw.random() < 0.8 else b"") + b"".join(frames))
            await writer.drain()
        writer.close()
    return number


async def _changed(stub: Any, known: list[Reference]) -> int:
    """The number of references that are answered differently now."""
    return sum([not reference.is_right(await call(stub, reference.message)) for reference in known])
