"""The gRPC service: server, conversion of messages, clients."""
