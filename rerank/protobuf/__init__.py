"""Messages of rerank.v1 and of gRPC's health checks: counted, read into domain types, and made from them."""
