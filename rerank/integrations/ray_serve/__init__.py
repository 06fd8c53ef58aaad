"""The service on Ray Serve: replicas in processes of their own, on one machine or many, behind Ray's gRPC proxy."""
