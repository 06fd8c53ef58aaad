"""The service on Ray Serve: Ray's gRPC proxy calls replicas, which are processes on one machine or several."""
