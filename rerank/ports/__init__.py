"""The ports that calls arrive at: gRPC, HTTP, Ray Serve and MCP."""
