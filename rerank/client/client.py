"""Clients of the gRPC service, blocking and asyncio. Replies are the protobuf messages of `rerank.v1.rerank_pb2`."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rerank.access.credentials import PLAIN, Credentials
from rerank.client.error_details import NO_ANSWER, ServiceError
from rerank.client.retries import DEFAULT_TIMEOUT_S, Attempts, checked_timeout_s
from rerank.errors import ConfigError, RerankError, UsageError
from rerank.names import LIVENESS, SERVICE
from rerank.protobuf.fields import request_message
from rerank.readers.candidates import passage_of
from rerank.types import CandidateLike, candidate_list
from rerank.util.addresses import complete_address
from rerank.util.many import ConcurrencyLimit, EventLoopThread, in_order, pair_of, with_bar
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

#: Schemes of gRPC's target names; gRPC would take any other scheme for the name of a host.
_SCHEMES = {"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds"}
#: Failures that do not depend on the request. A proxy before the service answers PERMISSION_DENIED.
_REQUEST_INDEPENDENT = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class _Client:
    """The arguments and the repr that both clients share."""

    def __init__(self, target: str, credentials: Credentials = PLAIN, attempts: int | None = None) -> None:
        self._target, self._attempts, self._credentials = _checked_target(target), attempts, credentials
        self._is_closed = False

    def __repr__(self) -> str:
        security = "TLS" if self._credentials.tls_ca else "plain text"
        key = "API key" if self._credentials.api_key else "no API key"
        return f"<{'closed ' if self._is_closed else ''}{type(self).__name__} of {self._target}: {security}, {key}>"

    def _new_attempts(self, timeout_s: float | None) -> Attempts:
        """The attempts of a call. Raises: UsageError if the client is closed."""
        if self._is_closed:
            name = type(self).__name__
            raise UsageError(f"this {name} is closed; make a new one, or call it inside its `with` block")
        return Attempts(timeout_s, self._attempts)


class RerankClient(_Client):
    """Blocking client of a service. Use it in a `with` block, or close it.

    A call that fails because the service is unavailable or overloaded is sent again, see `rerank.client.retries`.

    Args:
        target: HOST:PORT of the service, or another target name of gRPC, such as unix:/run/rerank.
        credentials: TLS and API key, for a service that asks for them.
        attempts: the most attempts of a call; 1 for no retries. None: four attempts to a service that answers; while
            nothing answers, because a service loads its models, attempts until the deadline.

    Raises:
        ConfigError: `target` is a URL or has no port, or a file of the credentials cannot be read.
    """

    def __init__(self, target: str, credentials: Credentials = PLAIN, attempts: int | None = None) -> None:
        super().__init__(target, credentials, attempts)
        self._channel = credentials.channel(target)
        self._stub = rerank_pb2_grpc.RerankServiceStub(self._channel)

    def __enter__(self) -> RerankClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. The client cannot be used afterwards."""
        self._is_closed = True
        self._channel.close()

    def rerank(
        self,
        query: str,
        candidates: Iterable[pb.Candidate | CandidateLike],
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        **options: Any,
    ) -> pb.RerankResponse:
        """Reranks candidates.

        Args:
            query: the query.
            candidates: in first-stage order, best first, unless the option `ordered` is false: dicts with "text" and
                optionally "doc_id", "title" and "score", (doc_id, text) pairs, plain texts, Candidates,
                Passages, or protobuf messages. Without an id, the id is the position: "0", "1", ….
            timeout_s: deadline of the call in seconds, with all its attempts; None for none.
            options: further fields of RerankRequest, such as model="pe-rank", top_n=10, ordered=False or
                strategy="sliding".

        Raises:
            ServiceError: the call failed.
            InvalidRequest: a candidate has none of these forms; RerankRequest has no such field, or the field cannot
                have this value; or `timeout_s` is not a number.
            UsageError: the client is closed.
        """
        return self._call(self._stub.Rerank, rerank_request(query, candidates, options), timeout_s)

    def rerank_many(
        self,
        requests: Iterable[tuple[str, Iterable[pb.Candidate | CandidateLike]]],
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> Iterator[pb.RerankResponse | ServiceError]:
        """Reranks many lists, with as many concurrent calls as the service accepts.

        Args:
            requests: pairs of query and candidates, as for `rerank`. A bounded number is read ahead of the answers, so
                there may be any number of them.
            timeout_s: deadline of each call in seconds, as for `rerank`.
            show_progress_bar: whether to show a progress bar on a terminal or in a notebook.
            options: the options of all requests, see `rerank`.

        Returns:
            The response to each request, in their order; for one that failed, the error, which is not raised.

        Raises:
            ServiceError: nothing answers at the target, or the key is not valid.
            InvalidRequest, UsageError: see `rerank`.
            TypeError: a request is not a pair.
        """
        self._new_attempts(timeout_s)  # raises here, before the first request, if the client is closed
        messages = (rerank_request(query, candidates, options) for query, candidates in map(pair_of, requests))
        return with_bar(self._answers(messages, timeout_s), requests, show_progress_bar)

    def _answers(
        self, messages: Iterable[pb.RerankRequest], timeout_s: float | None
    ) -> Iterator[pb.RerankResponse | ServiceError]:
        async def opened() -> AsyncRerankClient:
            return AsyncRerankClient(self._target, self._credentials, self._attempts)

        with closing(EventLoopThread("rerank-many")) as loop:
            limit, client = ConcurrencyLimit(_is_refusal), loop.wait(opened())

            async def answer(message: pb.RerankRequest) -> pb.RerankResponse | ServiceError:
                try:
                    response: pb.RerankResponse = await limit.run(lambda: client._call("Rerank", message, timeout_s))
                except ServiceError as error:
                    if error.code in _REQUEST_INDEPENDENT or error.reason == NO_ANSWER:
                        raise
                    return error
                return response

            try:
                yield from in_order(messages, lambda message: loop.start(answer(message)))
            finally:
                loop.wait(client.__aexit__())

    def search(self, query: str, timeout_s: float | None = DEFAULT_TIMEOUT_S, **options: Any) -> pb.RerankResponse:
        """Retrieves candidates from the service's index and reranks them.

        `options` are further fields of SearchRequest, such as first_stage="bm25", depth=20 or feedback="rocchio".
        Raises as `rerank` does.
        """
        return self._call(self._stub.Search, _search_request(query, options), timeout_s)

    def list_models(self, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> pb.ListModelsResponse:
        """Lists the models that requests may name, and describes the index. Raises: ServiceError."""
        return self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)

    def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        attempts = self._new_attempts(timeout_s)
        while True:
            try:
                return method(request, timeout=attempts.remaining_s, metadata=self._credentials.metadata)
            except grpc.RpcError as error:
                if (wait_s := attempts.wait_s(error)) is None:
                    raise ServiceError(error, self._target) from error
            time.sleep(wait_s)


class AsyncRerankClient(_Client):
    """RerankClient for asyncio, with the same arguments and methods. Use it in an `async with` block.

    It has a connection for each event loop that calls it, so that several calls of asyncio.run() may share a client.

    Raises:
        ConfigError: see RerankClient.
        UsageError: no event loop runs.
    """

    def __init__(self, target: str, credentials: Credentials = PLAIN, attempts: int | None = None) -> None:
        super().__init__(target, credentials, attempts)
        channel = credentials.aio_channel(target)
        self._channels = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, grpc.aio.Channel]()
        self._channels[asyncio.get_running_loop()] = channel

    async def __aenter__(self) -> AsyncRerankClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        if channel := self._channels.pop(asyncio.get_running_loop(), None):
            await channel.close()

    async def rerank(
        self,
        query: str,
        candidates: Iterable[pb.Candidate | CandidateLike],
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        **options: Any,
    ) -> pb.RerankResponse:
        """See RerankClient.rerank."""
        response: pb.RerankResponse = await self._call("Rerank", rerank_request(query, candidates, options), timeout_s)
        return response

    async def search(
        self, query: str, timeout_s: float | None = DEFAULT_TIMEOUT_S, **options: Any
    ) -> pb.RerankResponse:
        """See RerankClient.search."""
        return await self._call("Search", _search_request(query, options), timeout_s)

    async def list_models(self, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> pb.ListModelsResponse:
        """See RerankClient.list_models."""
        return await self._call("ListModels", pb.ListModelsRequest(), timeout_s)

    async def _call(self, name: str, request: Any, timeout_s: float | None) -> Any:
        attempts, loop = self._new_attempts(timeout_s), asyncio.get_running_loop()
        if loop not in self._channels:
            self._channels[loop] = self._credentials.aio_channel(self._target)
        method: Any = getattr(rerank_pb2_grpc.RerankServiceStub(self._channels[loop]), name)
        while True:
            try:
                return await method(request, timeout=attempts.remaining_s, metadata=self._credentials.metadata)
            except grpc.aio.AioRpcError as error:
                if (wait_s := attempts.wait_s(error)) is None:
                    raise ServiceError(error, self._target) from error
            await asyncio.sleep(wait_s)


def _checked_target(target: str) -> str:
    """The target. Raises: ConfigError for a URL; or without a port, because gRPC would call port 443."""
    if "://" in target and (scheme := target.partition("://")[0]) not in _SCHEMES:
        raise ConfigError(
            f"target {target!r} begins with {scheme}://, but this client speaks gRPC and takes HOST:PORT of the gRPC "
            "port; use 127.0.0.1:50051, for example, and `Credentials` for TLS"
        )
    host, _, port = target.rpartition(":")
    if "/" not in target and not (host and port.isdecimal()):
        raise ConfigError(f"target {target!r} is not HOST:PORT; use {complete_address(target.strip())}, for example")
    return target


def list_loaded_models(client: RerankClient, names: Collection[str], timeout_s: float) -> pb.ListModelsResponse:
    """Lists the models after each of `names` was loaded once, so that the hashes of their weights are known.

    To load a model that is loaded on request, this ranks one passage.

    Args:
        names: names of models; unknown names are ignored, and an empty name means the default model.
        timeout_s: deadline of each call, in seconds.

    Raises:
        ServiceError: a call failed, such as because a model cannot be loaded.
    """
    listed = client.list_models(timeout_s)
    described = {model.name: model for model in listed.models} | {"": listed.models[0]}
    chosen = [model for name, model in described.items() if name in names]
    unloaded = [model.name for model in chosen if not (model.is_loaded or model.model_revision or model.problem)]
    for name in dict.fromkeys(unloaded):
        client.rerank("a", ["a"], timeout_s, model=name)
    return client.list_models(timeout_s) if unloaded else listed


def check_health(
    target: str, credentials: Credentials, timeout_s: float, model: str = "", liveness: bool = False
) -> str:
    """The status of a service, such as "SERVING" or "NOT_SERVING".

    Args:
        target: HOST:PORT of the service.
        credentials: TLS; health checks need no key.
        timeout_s: deadline of the call in seconds.
        model: name of the model whose status is returned; empty: the default model.
        liveness: whether only the process is checked, even if its models are not served.

    Raises:
        ServiceError: there was no answer, or there is no such model.
    """
    name = LIVENESS if liveness else f"{SERVICE}/{model}" if model else ""
    with credentials.channel(target) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=name), timeout=checked_timeout_s(timeout_s)
            )
        except grpc.RpcError as error:
            raise ServiceError(error, target) from error
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def _is_refusal(error: RerankError) -> bool:
    """True if the service was overloaded, and says when to send the request again."""
    return isinstance(error, ServiceError) and error.retry_after_s is not None


def rerank_request(
    query: str, candidates: Iterable[pb.Candidate | CandidateLike], options: dict[str, Any]
) -> pb.RerankRequest:
    """The message of a request; `options` are its further fields. Raises: see RerankClient.rerank."""
    messages = [_message(candidate, index) for index, candidate in enumerate(candidate_list(candidates))]
    return request_message(pb.RerankRequest, {"query": query, **options}, candidates=messages)


def _search_request(query: str, options: dict[str, Any]) -> pb.SearchRequest:
    return request_message(pb.SearchRequest, {"query": query, **options})


def _message(candidate: pb.Candidate | CandidateLike, index: int) -> pb.Candidate:
    if isinstance(candidate, pb.Candidate):
        return candidate
    passage = passage_of(candidate, index)
    return pb.Candidate(
        doc_id=passage.doc_id,
        text=None if passage.in_index and not passage.text else passage.text,
        in_index=passage.in_index,
        first_stage_score=passage.score,
        title=passage.title,
    )
