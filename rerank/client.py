"""Clients of the gRPC service; the public import path of `rerank.service.client`."""

from rerank.service.client import AsyncRerankClient, RerankClient, ServiceError

__all__ = ["AsyncRerankClient", "RerankClient", "ServiceError"]
