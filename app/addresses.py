"""Addresses that this machine listens on, and its own name."""

import ipaddress
import socket

_LOOPBACK_NAMES = {"localhost", "ip6-localhost"}


def listens_on_all(host: str) -> bool:
    """Whether this address to listen on stands for all addresses of the machine."""
    return host in ("0.0.0.0", "::")  # noqa: S104


def own_name() -> str:
    """Name of this machine, or, of one named localhost, its address towards other networks."""
    name = socket.gethostname()
    if name and not is_loopback(name) and not name.startswith("localhost"):
        return name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: a datagram socket only picks its route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in _LOOPBACK_NAMES
