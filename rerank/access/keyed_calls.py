"""The calls in flight of a service with API keys."""

from __future__ import annotations

from rerank.access.callers import current_caller
from rerank.access.keys import KeyStore
from rerank.config import Limits
from rerank.grpc.servicer import CallsInFlight, Context


class KeyedCalls(CallsInFlight):
    """CallsInFlight that refuses a call before its message is read if it has no valid key, or if its key has too many.

    Args:
        limits: limits on all calls together.
        keys: the callers.
    """

    def __init__(self, limits: Limits, keys: KeyStore) -> None:
        super().__init__(limits)
        self.keys = keys

    def enter(self, context: Context) -> None:
        """See CallsInFlight.enter; makes the holder of the key the current caller. Raises also: Unauthenticated."""
        caller = self.keys.authenticate(_authorization(context))
        caller.enter()
        try:
            super().enter(context)
        except BaseException:
            caller.leave()
            raise
        context.add_done_callback(lambda _: caller.leave())  # type: ignore[arg-type]  # the stubs want a class
        current_caller.set(caller)


def _authorization(context: Context) -> str | None:
    """The header `authorization`; None if the call has none, or several."""
    values = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
    return str(values[0]) if len(values) == 1 else None
