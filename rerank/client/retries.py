"""Attempts of a call: after which failures it is sent again, and how long the client waits before.

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

#: Time limit of a call with all its attempts, in seconds: the default of the service's `limits.max_request_s`.
DEFAULT_TIMEOUT_S = 120.0
#: About 32 years, for calls without a deadline: gRPC takes a deadline in the very far future for one in the past.
_MAX_TIMEOUT_S = 1e9
DEFAULT_ATTEMPTS = 4
#: The wait after the first attempt without an answer, in seconds; it doubles with each further attempt.
_FIRST_WAIT_S = 0.25
#: The longest wait for a service that does not answer yet, in seconds.
_LONGEST_WAIT_S = 2.0
#: The beginnings of gRPC's message if there is no connection.
_NOT_CONNECTED = ("failed to connect to all addresses", "errors resolving ")
#: Waits are longer by a random part of up to this, so that clients that were refused together do not return together.
_JITTER = 0.25


def checked_timeout_s(timeout_s: float | None) -> float:
    """The time limit of a call in seconds, within the range that gRPC can count; None means no limit.

    Raises: InvalidRequest if `timeout_s` is not a number.
    """
    if timeout_s is None:
        return _MAX_TIMEOUT_S
    if not isinstance(timeout_s, SupportsFloat) or math.isnan(timeout_s):
        raise InvalidRequest("timeout_s", f"{timeout_s!r} is not a number of seconds; None is no deadline")
    return min(float(timeout_s), _MAX_TIMEOUT_S)


class Attempts:
    """The attempts of one call, which is sent again as long as its deadline allows.

    A call is repeated if the service is unavailable, or if the service is overloaded and says by RetryInfo when to
    return. All methods of the service only read, so a call whose answer was lost may be repeated, too.

    Args:
        timeout_s: time for all attempts and the waits between them, in seconds; None: no deadline.
        max_attempts: the largest number of attempts; None: `DEFAULT_ATTEMPTS`, where attempts without a connection do
            not count.
        clock: returns the time in seconds.
        random_number: returns a number from 0 to 1, for the jitter.

    Raises:
        InvalidRequest: `timeout_s` is not a number.
    """

    def __init__(
        self,
        timeout_s: float | None,
        max_attempts: int | None,
        clock: Callable[[], float] = time.monotonic,
        random_number: Callable[[], float] = random.random,
    ) -> None:
        self._clock, self._random_number = clock, random_number
        self._deadline_s = clock() + checked_timeout_s(timeout_s)
        self._made, self._unreachable, self._max_attempts = 0, 0, max_attempts

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline of the call."""
        return self._deadline_s - self._clock()

    def wait_s(self, error: grpc.RpcError) -> float | None:
        """Seconds to wait before the call is sent again; None if it has failed for good."""
        requested_s, code = retry_delay_s(error), error.code()
        is_temporary = code is grpc.StatusCode.UNAVAILABLE or (
            code is grpc.StatusCode.RESOURCE_EXHAUSTED and requested_s is not None
        )
        self._made += 1
        if self._max_attempts is None and _is_unreachable(error):
            self._unreachable += 1
            if self._unreachable == 1:
                log.warning("nothing answers yet, waiting for up to %.0f s: %s", self.remaining_s, explanation(error))
        if not is_temporary or is_other_protocol(error):
            return None
        if self._made - self._unreachable >= (self._max_attempts or DEFAULT_ATTEMPTS):
            return None
        backoff_s = min(_FIRST_WAIT_S * 2 ** min(self._made - 1, 10), _LONGEST_WAIT_S)
        wait_s = backoff_s if requested_s is None else requested_s
        wait_s *= 1 + _JITTER * self._random_number()
        return wait_s if wait_s < self.remaining_s else None


def _is_unreachable(error: grpc.RpcError) -> bool:
    """True if there is no connection to a service, which may still be starting."""
    return (
        error.code() is grpc.StatusCode.UNAVAILABLE
        and not error_info(error).reason
        and (error.details() or "").startswith(_NOT_CONNECTED)
        and not is_other_protocol(error)
    )
