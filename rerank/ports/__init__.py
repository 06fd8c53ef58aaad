"""The ports that calls arrive at: gRPC and HTTP."""
