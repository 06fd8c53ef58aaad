"""The gRPC port: server, servicer, connections and health checks."""
