"""Proxies of the environment: this machine's loopback is called without one, and a failed call names its proxy."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence


def host_of(target: str) -> str:
    """The host of HOST:PORT, or of another target name of gRPC, such as dns:///HOST:PORT."""
    return re.sub(r"^(dns|ipv[46]):", "", target.rpartition("/")[2]).rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """True if a host name or address leads to this machine's loopback, as the address of all interfaces does."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def channel_options(target: str) -> list[tuple[str, int]]:
    """gRPC's options for a channel to a target: without a proxy if the target is on this machine's loopback."""
    return [("grpc.enable_http_proxy", 0)] if is_loopback(host_of(target)) else []


def proxy_note(host: str, variables: Sequence[str]) -> str:
    """The end of the error of a failed call: the environment variable whose proxy it used; empty if it used none.

    Args:
        variables: environment variables that may name a proxy, the one that counts first.
    """
    name = next((name for name in variables if os.environ.get(name)), "")
    if not name or is_loopback(host):
        return ""
    return f" (by the proxy of {name}, unless no_proxy lists {host}; add it there if no proxy leads to it)"
