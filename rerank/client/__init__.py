"""Clients of the gRPC service, and what they need: retries, and details of errors."""

from rerank.access.credentials import Credentials
from rerank.client.client import AsyncRerankClient, RerankClient
from rerank.client.error_details import ServiceError

__all__ = ["AsyncRerankClient", "Credentials", "RerankClient", "ServiceError"]
