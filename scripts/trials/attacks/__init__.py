"""Attacks on the service, each a coroutine function in the registry."""
