"""The public import path of the typed clients; see rerank.service.client."""

from rerank.service.client import AsyncRerankClient, RerankClient, ServiceError

__all__ = ["AsyncRerankClient", "RerankClient", "ServiceError"]
