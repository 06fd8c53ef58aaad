"""Attempts of a call: which failures are sent again, and the wait before.

gRPC's own retries (`retryPolicy` and `grpc-retry-pushback-ms`, gRFC A6) are not used. In grpcio 1.85 they wait beyond
the deadline of a call and then report DEADLINE_EXCEEDED in place of the service's reason, let all callers return at the
same moment, and repeat RESOURCE_EXHAUSTED without RetryInfo, by which gRPC refuses a message that is too large.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import grpc

from rerank.client.error_details import retry_delay_s

#: The time that a call may take with all its attempts, in seconds: the default of the service's `limits.max_request_s`.
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_ATTEMPTS = 4
#: The wait after the first attempt that got no answer, in seconds; each further one is twice as long.
_FIRST_WAIT_S = 0.25
#: Waits are up to this much longer, by chance, so that clients that were refused together do not return together.
_JITTER = 0.25


class Attempts:
    """The attempts of one call, which is sent again as long as its deadline allows.

    A call is repeated if the service is unavailable, or if it is overloaded and says by RetryInfo when to return. All
    methods of the service only read, so a call whose answer was lost may be repeated, too.

    Args:
        timeout_s: time for all attempts and the waits between them, in seconds.
        most: the largest number of attempts.
        clock: seconds.
        chance: a number from 0 to 1.
    """

    def __init__(
        self,
        timeout_s: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock, self._chance = clock, chance
        self._deadline_s = clock() + timeout_s
        self._made, self._most = 0, most

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline of the call."""
        return self._deadline_s - self._clock()

    def wait_s(self, error: grpc.RpcError) -> float | None:
        """Seconds to wait before the call is sent again; None if it has failed for good."""
        self._made += 1
        asked_s, code = retry_delay_s(error), error.code()
        is_temporary = code is grpc.StatusCode.UNAVAILABLE or (
            code is grpc.StatusCode.RESOURCE_EXHAUSTED and asked_s is not None
        )
        if not is_temporary or self._made >= self._most:
            return None
        wait_s = _FIRST_WAIT_S * 2 ** (self._made - 1) if asked_s is None else asked_s
        wait_s *= 1 + _JITTER * self._chance()
        return wait_s if wait_s < self.remaining_s else None
