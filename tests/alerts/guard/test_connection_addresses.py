from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.connection import is_in, is_public, parse_address, parse_networks, unwrapped
from app.errors import Blocked
from tests.alerts.guard.spellings import SPELLINGS

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.215.14",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001::1",
    "64:ff9b::8.8.8.8",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_ordinary_addresses_are_public_and_their_neighbours_are_not(text):
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", sorted({text.partition("%")[0] for text in SPELLINGS.values()}))
def test_what_is_of_a_machine_a_site_or_nobody_is_not_public(text):
    assert not is_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_wrapping_an_address_changes_nothing(address):
    number = int(address)
    wrapped = [
        ip_address((0xFFFF << 32) | number),
        ip_address((0x64FF9B << 96) | number),
        ip_address((0x2002 << 112) | (number << 80)),
    ]
    for each in wrapped:
        assert unwrapped(each) == address
        assert is_public(each) == is_public(address)


@given(st.ip_addresses(v=6))
def test_of_ipv6_only_global_unicast_is_public(address):
    if is_public(address) and unwrapped(address) == address:
        assert int(address) >> 125 == 1


@given(st.ip_addresses())
def test_nothing_is_public_that_is_private_multicast_or_reserved(address):
    if is_public(address):
        plain = unwrapped(address)
        for claim in ("private", "multicast", "reserved", "loopback", "link_local", "unspecified"):
            assert not getattr(plain, f"is_{claim}")


def test_a_mapped_address_is_in_the_networks_of_the_plain_one():
    networks = parse_networks(["10.2.0.0/16", "fd00::/8"])
    assert is_in(ip_address("10.2.3.4"), networks)
    assert is_in(ip_address("::ffff:10.2.3.4"), networks)
    assert is_in(ip_address("fd00::1"), networks)
    assert not is_in(ip_address("10.3.0.0"), networks)
    assert not is_in(ip_address("64:ff9b::10.2.3.4"), networks)


@pytest.mark.parametrize("text", ["", "x", "127.1", "fe80::1%eth0", "1.2.3.4.5", "01.2.3.4"])
def test_what_a_resolver_says_has_to_be_an_address(text):
    with pytest.raises(Blocked):
        parse_address(text)


def test_a_network_with_a_host_in_it_is_refused():
    with pytest.raises(ValueError, match="host bits"):
        parse_networks(["10.2.0.1/16"])
