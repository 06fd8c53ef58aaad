"""The gRPC port: its address and options, and handlers of calls."""
