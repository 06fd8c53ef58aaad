"""Attempts of a call: which failures are sent again, and the wait before.

A service opens its port when its models are loaded. So a call waits until its deadline while nothing answers. It fails
at once where waiting cannot help: another protocol answers, or TLS cannot be agreed on. It waits for a name that does
not resolve, because in a cluster the name may appear with the service.

gRPC's own retries (`retryPolicy` and `grpc-retry-pushback-ms`, gRFC A6) are not used. In grpcio 1.85 they wait beyond
the deadline of a call and then report DEADLINE_EXCEEDED instead of the service's reason, let all callers return at the
same moment, and repeat RESOURCE_EXHAUSTED without RetryInfo, gRPC's refusal of a message that is too large.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import SupportsFloat

import grpc

from rerank.client.error_details import error_info, explanation, is_other_protocol, retry_delay_s
from rerank.errors import InvalidRequest

log = logging.getLogger(__name__)

#: The time that a call may take with all its attempts, in seconds: the default of the service's `limits.max_request_s`.
DEFAULT_TIMEOUT_S = 120.0
#: About 32 years mean no deadline: gRPC takes a deadline in the far future for one in the past.
_MOST_S = 1e9
DEFAULT_ATTEMPTS = 4
#: The wait after the first attempt that got no answer, in seconds; each further one is twice as long.
_FIRST_WAIT_S = 0.25
#: The longest wait for a service that does not answer yet, in seconds.
_LONGEST_WAIT_S = 2.0
#: The beginnings of gRPC's message if there is no connection.
_NOT_CONNECTED = ("failed to connect to all addresses", "errors resolving ")
#: Waits are up to this much longer, by chance, so that clients that were refused together do not return together.
_JITTER = 0.25


def checked_timeout_s(timeout_s: float | None) -> float:
    """The time of a call in seconds, `None` for none, as gRPC can count it.

    Raises: InvalidRequest if it is not a number.
    """
    if timeout_s is None:
        return _MOST_S
    if not isinstance(timeout_s, SupportsFloat) or math.isnan(timeout_s):
        raise InvalidRequest("timeout_s", f"{timeout_s!r} is not a number of seconds; None is no deadline")
    return min(float(timeout_s), _MOST_S)


class Attempts:
    """The attempts of one call, which is sent again as long as its deadline allows.

    A call is repeated if the service is unavailable, or if it is overloaded and says by RetryInfo when to return. All
    methods of the service only read, so a call whose answer was lost may be repeated, too.

    Args:
        timeout_s: time for all attempts and the waits between them, in seconds; None: no deadline.
        most: the largest number of attempts; None: `DEFAULT_ATTEMPTS` that found a service, and any number of others.
        clock: seconds.
        chance: a number from 0 to 1.

    Raises:
        InvalidRequest: `timeout_s` is not a number.
    """

    def __init__(
        self,
        timeout_s: float | None,
        most: int | None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock, self._chance = clock, chance
        self._deadline_s = clock() + checked_timeout_s(timeout_s)
        self._made, self._unreachable, self._most = 0, 0, most

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline of the call."""
        return self._deadline_s - self._clock()

    def wait_s(self, error: grpc.RpcError) -> float | None:
        """Seconds to wait before the call is sent again; None if it has failed for good."""
        asked_s, code = retry_delay_s(error), error.code()
        is_temporary = code is grpc.StatusCode.UNAVAILABLE or (
            code is grpc.StatusCode.RESOURCE_EXHAUSTED and asked_s is not None
        )
        self._made += 1
        if self._most is None and _is_unreachable(error):
            self._unreachable += 1
            if self._unreachable == 1:
                log.warning("nothing answers yet, waiting for up to %.0f s: %s", self.remaining_s, explanation(error))
        if not is_temporary or is_other_protocol(error):
            return None
        if self._made - self._unreachable >= (self._most or DEFAULT_ATTEMPTS):
            return None
        wait_s = min(_FIRST_WAIT_S * 2 ** min(self._made - 1, 10), _LONGEST_WAIT_S) if asked_s is None else asked_s
        wait_s *= 1 + _JITTER * self._chance()
        return wait_s if wait_s < self.remaining_s else None


def _is_unreachable(error: grpc.RpcError) -> bool:
    """True if there is no connection to a service, which may still be starting."""
    return (
        error.code() is grpc.StatusCode.UNAVAILABLE
        and not error_info(error).reason
        and (error.details() or "").startswith(_NOT_CONNECTED)
        and not is_other_protocol(error)
    )
