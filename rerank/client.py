"""Clients of the gRPC service; the public import path of `rerank.service.client`."""

from rerank.service.client import AsyncRerankClient, RerankClient, ServiceError, reply_table
from rerank.service.credentials import Credentials

__all__ = ["AsyncRerankClient", "Credentials", "RerankClient", "ServiceError", "reply_table"]
