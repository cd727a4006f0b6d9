import socket
import threading

import pytest

from app.alerts.connection import SystemResolver


def test_names_become_addresses():
    assert "127.0.0.1" in SystemResolver()("localhost")


def answers(*addresses):
    def lookup(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]

    return lookup


@pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError("label too long")])
def test_a_name_without_an_address_is_an_error_of_the_system(error):
    def lookup(*_, **__):
        raise error

    with pytest.raises(OSError):  # noqa: PT011
        SystemResolver(lookup=lookup)("a.example")


def test_a_resolver_that_hangs_holds_up_nobody_for_long_nor_grows():
    released = threading.Event()
    begun = []

    def lookup(host, port, **_):
        begun.append(host)
        released.wait(10)
        return []

    resolver = SystemResolver(timeout_s=0.05, most_at_once=3, lookup=lookup)
    before = threading.active_count()
    try:
        for number in range(8):
            with pytest.raises(TimeoutError):
                resolver(f"{number}.example")
        assert len(begun) == 3
        assert threading.active_count() <= before + 3
    finally:
        released.set()


def test_who_hung_makes_room_when_it_is_over():
    released = threading.Event()

    def lookup(host, port, **_):
        if host == "slow.example":
            released.wait(10)
        return answers("1.1.1.1")(host, port)

    resolver = SystemResolver(timeout_s=0.05, most_at_once=1, lookup=lookup)
    with pytest.raises(TimeoutError):
        resolver("slow.example")
    released.set()
    patient = SystemResolver(timeout_s=5.0, most_at_once=1, lookup=lookup)
    assert patient("fast.example") == ["1.1.1.1"]
