"""Who may call the service, and from where: API keys, TLS, certificates and credentials."""
