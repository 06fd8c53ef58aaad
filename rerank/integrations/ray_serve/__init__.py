"""The service on Ray Serve: replicas in separate processes, on one machine or many, that Ray's gRPC proxy calls."""
