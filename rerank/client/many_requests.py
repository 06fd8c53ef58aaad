"""Many requests over one stream: RerankStream, with retries of single requests and of the stream itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from rerank.client.error_details import ServiceError
from rerank.client.retries import DEFAULT_TIMEOUT_S, Attempts
from rerank.errors import ConfigError, DeadlineExceeded
from rerank.util.many import IN_WORK
from rerank.v1 import rerank_pb2 as pb

#: Opens the stream over these requests.
Open: TypeAlias = Callable[[Iterable[pb.RerankStreamRequest]], Any]

#: Requests and bytes that are sent ahead of the answer that is awaited. More than the service has in work, so that a
#: slow request does not keep it from the next ones.
_AHEAD, _BYTES_AHEAD = 2 * IN_WORK, 32 << 20
#: A service counts as dead when it is silent for this many times the longest wait for an answer.
_PATIENCE = 2.0


def weight(request: pb.RerankStreamRequest) -> float:
    """The request's share of the send-ahead budget, see `in_order`."""
    return max(1 / _AHEAD, request.ByteSize() / _BYTES_AHEAD)


class _RequestFailed(grpc.RpcError):
    """The status of one request of a stream, in the form that gRPC has for a call."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self._status = rpc_status.to_status(status)

    def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode = self._status.code
        return code

    def details(self) -> str:
        return str(self._status.details)

    def trailing_metadata(self) -> Any:
        return self._status.trailing_metadata


class ManyRequests:
    """Requests that go over a stream, which is opened when it is first needed, and again after it has ended.

    Args:
        open_stream: opens it.
        target: HOST:PORT of the service, for messages.
        attempts: how often a request is sent at most, see `Attempts`.
    """

    def __init__(self, open_stream: Open, target: str, attempts: int | None) -> None:
        self._open, self._target, self._attempts = open_stream, target, attempts
        self._stream: _Stream | None = None

    def start(self, request: pb.RerankStreamRequest) -> _Asked:
        """Sends a request."""
        return _Asked(self, request)

    def send(self, request: pb.RerankStreamRequest) -> Future[pb.RerankResponse]:
        """Sends a request once; its error is a grpc.RpcError."""
        if self._stream is None or self._stream.has_ended:
            self._stream = _Stream(self._open)
        return self._stream.send(request)

    def close(self) -> None:
        """Ends the stream, and cancels the requests that are under way."""
        if self._stream is not None:
            self._stream.close()

    def new_attempts(self) -> Attempts:
        """The attempts of a request."""
        return Attempts(DEFAULT_TIMEOUT_S, self._attempts)

    def failure(self, error: grpc.RpcError) -> ServiceError:
        """The error of a request that has failed for good. Raises: ServiceError, ConfigError if the stream has."""
        failure = ServiceError(error, self._target)
        if isinstance(error, _RequestFailed):
            return failure
        if failure.code is grpc.StatusCode.UNIMPLEMENTED:
            problem = f"the service at {self._target} answers no streams, as on Ray Serve; send its requests singly"
            raise ConfigError(problem) from error
        raise failure from error

    def check_alive(self, since_s: float, longest_s: float) -> None:
        """Raises: DeadlineExceeded if nothing was heard of the service for longer than a request may take."""
        if self._stream is not None and time.monotonic() - max(self._stream.heard_s, since_s) > _PATIENCE * longest_s:
            self.close()
            raise DeadlineExceeded(f"no answer from {self._target} within {_PATIENCE * longest_s:g} s; is it running?")


class _Asked:
    """A request that was sent, see `rerank.util.many.Started`. It is sent again by whoever waits for its result."""

    def __init__(self, many: ManyRequests, request: pb.RerankStreamRequest) -> None:
        self._many, self._request = many, request
        self._future = many.send(request)

    def result(self) -> pb.RerankResponse | ServiceError:
        attempts, since_s = self._many.new_attempts(), time.monotonic()
        longest_s = self._request.timeout_ms / 1000 or DEFAULT_TIMEOUT_S
        while True:
            try:
                return self._future.result(longest_s)
            except TimeoutError:
                self._many.check_alive(since_s, longest_s)
            except grpc.RpcError as error:
                if (wait_s := attempts.wait_s(error)) is None:
                    return self._many.failure(error)
                time.sleep(wait_s)
                self._future = self._many.send(self._request)

    def cancel(self) -> None:
        self._many.close()


class _Stream:
    """One call of RerankStream, whose answers are read on a thread.

    Attributes:
        has_ended: whether nothing can be sent any more.
        heard_s: when the latest answer came, in seconds of time.monotonic.
    """

    def __init__(self, open_stream: Open) -> None:
        self.has_ended, self.heard_s = False, time.monotonic()
        self._requests: SimpleQueue[pb.RerankStreamRequest | None] = SimpleQueue()
        self._futures: dict[int, Future[pb.RerankResponse]] = {}
        self._sent = 0
        self._lock = threading.Lock()
        self._call = open_stream(iter(self._requests.get, None))
        threading.Thread(target=self._read, name="rerank-stream", daemon=True).start()

    def send(self, request: pb.RerankStreamRequest) -> Future[pb.RerankResponse]:
        future: Future[pb.RerankResponse] = Future()
        with self._lock:
            if self.has_ended:
                future.set_exception(self._call)
            else:
                self._futures[self._sent] = future
                self._sent += 1
                self._requests.put(request)
        return future

    def close(self) -> None:
        self._call.cancel()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self.heard_s = time.monotonic()
                future = self._futures.pop(answer.number)
                if answer.HasField("error"):
                    future.set_exception(_RequestFailed(answer.error))
                else:
                    future.set_result(answer.response)
        except grpc.RpcError:
            pass  # it is `_call` itself, with its status
        finally:
            with self._lock:
                self.has_ended = True
            self._requests.put(None)  # ends the thread on which gRPC sends
            for future in self._futures.values():
                future.set_exception(self._call)
