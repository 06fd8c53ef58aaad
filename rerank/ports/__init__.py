"""Where calls arrive: gRPC, HTTP, Ray Serve and MCP."""
