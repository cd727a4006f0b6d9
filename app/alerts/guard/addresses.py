"""Which addresses are the public Internet's, and so may be those of a project's own receiver."""

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from app.errors import Blocked

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# What is_global knows of these differs between versions of Python, hence a list of our own.
_DENIED_V4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT; Alibaba's metadata too
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's agents, public only by number
        "169.254.0.0/16",  # link-local: metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata too
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_DENIED_V6 = [
    IPv6Network(text)
    for text in (
        "::/3",  # loopback, unspecified, IPv4 in all its guises, discarding
        "4000::/2",  # not assigned
        "8000::/1",  # not assigned, unique local, link-local, site-local, multicast
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, should it ever not be unwrapped
        "3fff::/20",  # documentation
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_LOW_32_BITS = 0xFFFFFFFF


def is_public(address: Address) -> bool:
    """Whether it is an ordinary address of the Internet; one that wraps an IPv4 one is that one."""
    plain = unwrapped(address)
    denied: Sequence[Network] = _DENIED_V4 if plain.version == 4 else _DENIED_V6
    return plain.is_global and not any(plain in network for network in denied)


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one (mapped, 6to4 or NAT64), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & _LOW_32_BITS)
    return address.ipv4_mapped or address.sixtofour or address


def is_in(address: Address, networks: Sequence[Network]) -> bool:
    """Whether one of the networks has it; a mapped IPv4 address is the IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return any((mapped or address) in network for network in networks)


def parse_address(text: str) -> Address:
    """An address as written by a resolver.

    Raises:
        Blocked: it is none, or one of only this machine's links.
    """
    try:
        address = ip_address(text)
    except ValueError:
        raise Blocked("the receiver's name stands for something that is no address") from None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise Blocked("the receiver's address is one of a link of this machine")
    return address


def parse_networks(texts: Sequence[str]) -> list[Network]:
    """Networks as in settings, such as 10.2.0.0/16.

    Raises:
        ValueError: one is none; the message names it.
    """
    return [ip_network(text) for text in texts]
