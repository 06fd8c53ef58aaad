"""Clients of the gRPC service, and what they need: retries, details of errors, health checks."""

from rerank.access.credentials import Credentials
from rerank.client.client import AsyncRerankClient, RerankClient, ServiceError, reply_table

__all__ = ["AsyncRerankClient", "Credentials", "RerankClient", "ServiceError", "reply_table"]
