"""An event loop on a separate thread, for code without one."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rerank.errors import UsageError

T = TypeVar("T")


class LoopThread:
    """An event loop that runs until `close`, or until nothing refers to this object.

    Args:
        name: the name of its thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end_loop, self._loop, thread, self._process)

    @property
    def is_closed(self) -> bool:
        """True after the end of the loop, when no work can be started."""
        return not self._end.alive

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts some work, from any thread. Raises: UsageError in a process that was forked later."""
        if os.getpid() != self._process:
            work.close()
            raise UsageError(
                f"this process was forked after its parent made the {self._name}, and has none of its threads; make "
                "another one in this process"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work."""
        return self.start(work).result()

    def close(self) -> None:
        """Cancels what runs, and ends the thread."""
        self._end()


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:  # the thread did not come along when this one was forked
        return

    async def cancel_tasks() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(cancel_tasks(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
