"""Access to the service: API keys, TLS, certificates and credentials."""
