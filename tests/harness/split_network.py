"""Servers on hosts of their own, between which the network can be cut.

Each host is a network namespace of Linux with one address, all of them on one bridge; the tests
are on another address of it, and reach every host however the hosts are split. Needs root.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count

_number = count()


class NoNetwork(Exception):
    """This user may not make networks."""


class SplitNetwork:
    """Hosts by number, from 0."""

    def __init__(self, num_hosts: int) -> None:
        # A device of the one before may take a moment to go.
        unique = os.getpid() % 10_000
        self._prefix = f"p{unique}-{next(_number)}"
        self._net = f"10.{200 + unique % 50}.{unique // 50 % 250}"
        self.num_hosts = num_hosts

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"{self._net}.{10 + host}"

    def inside(self, host: int) -> list[str]:
        """What to put before a command, so that it runs on this host."""
        return ["ip", "netns", "exec", self._name(host)]

    def cut(self, left: Iterable[int], right: Iterable[int]) -> None:
        """No host on the left reaches one on the right from now on, and the other way round."""
        others = list(right)
        for host in left:
            for other in others:
                _ip(
                    "-n", self._name(host), "route", "add", "blackhole", f"{self.address(other)}/32"
                )
                _ip(
                    "-n", self._name(other), "route", "add", "blackhole", f"{self.address(host)}/32"
                )

    def heal(self) -> None:
        """All reach each other again."""
        for host in range(self.num_hosts):
            _ip("-n", self._name(host), "route", "flush", "type", "blackhole")

    def set_up(self, stack: ExitStack) -> None:
        """Make the hosts; the stack takes them away."""
        bridge = f"{self._prefix}b"
        self._take_away()  # what a run that was killed has left
        stack.callback(self._take_away)
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in range(self.num_hosts):
            name, cable = self._name(host), f"{self._prefix}c{host}"
            _ip("netns", "add", name)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", cable, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")

    def _take_away(self) -> None:
        for host in range(self.num_hosts):
            for kind, name in (("link", f"{self._prefix}c{host}"), ("netns", self._name(host))):
                with suppress(RuntimeError):
                    _ip(kind, "del", name)
        with suppress(RuntimeError):
            _ip("link", "del", f"{self._prefix}b")

    def _name(self, host: int) -> str:
        return f"{self._prefix}h{host}"


@contextmanager
def split_network(num_hosts: int) -> Iterator[SplitNetwork]:
    """So many hosts.

    Raises:
        NoNetwork: this user may not make them.
    """
    if os.geteuid() != 0:
        raise NoNetwork("only root may make networks")
    network = SplitNetwork(num_hosts)
    with ExitStack() as stack:
        network.set_up(stack)
        yield network


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "Operation not permitted" in done.stderr:  # root of a container
        raise NoNetwork(done.stderr.strip())
    raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
