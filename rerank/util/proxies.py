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
    """True for the name or an address of this machine's loopback, or of all interfaces, which leads there, too."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return found.is_loopback or found.is_unspecified


def channel_options(target: str) -> list[tuple[str, int]]:
    """gRPC's options of a channel to a target. No proxy leads back to this machine: its loopback is called directly."""
    return [("grpc.enable_http_proxy", 0)] if is_loopback(host_of(target)) else []


def proxy_note(host: str, variables: Sequence[str]) -> str:
    """A note that calls to a host go by a proxy, if one of these environment variables is set; otherwise empty."""
    name = next((name for name in variables if os.environ.get(name)), "")
    if not name or is_loopback(host):
        return ""
    return f" (by the proxy of {name}, unless no_proxy lists {host}; add it there if no proxy leads to it)"
