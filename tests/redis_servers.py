"""Real servers of every kind that the event queue supports, on free loopback ports."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from select import select
from typing import Any

import redis

from app.ingest.embedded import dies_with_parent, find_server
from tests.harness.split_network import SplitNetwork

WITHIN_S = 30.0
BUS = 10_000  # a cluster node also listens so far above its port
LAST_PORT = 50_000

DURABLE = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory": "256mb",
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": "0",
    "loglevel": "warning",
}


@dataclass
class Server:
    """One process; `kill` is kill -9, and `start` begins it anew on its files."""

    directory: Path
    port: int
    settings: dict[str, str]
    as_sentinel: bool = False
    host: str = "127.0.0.1"
    inside: Sequence[str] = ()  # what to put before its command
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {"port": str(self.port), "dir": str(self.directory), **self.settings}
        lines = [f"{name} {value or chr(34) * 2}" for name, value in settings.items()]
        config = self.directory / "server.conf"
        if not (self.as_sentinel and config.exists()):  # sentinels write into theirs
            config.write_text("\n".join([*lines, ""]))
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.inside,
                    find_server(),
                    config,
                    *(["--sentinel"] if self.as_sentinel else []),
                ],
                stdout=log,
                stderr=log,
                preexec_fn=dies_with_parent(),
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(self.host, self.port, socket_timeout=5, **options)


@dataclass
class Group:
    """Servers of one deployment, and the queue's URL of them."""

    url: str
    servers: list[Server]
    sentinels: list[Server] = field(default_factory=list)

    def wipe(self) -> None:
        for server in self.servers:
            with closing(server.client()) as client:
                if client.role()[0] == b"master":
                    client.flushall()

    def primary(self) -> Server:
        """The server that sentinels call the primary."""
        with closing(self.sentinels[0].client()) as client:
            where: Any = client.sentinel_get_master_addr_by_name("paceline")
        host, port = where[0].decode(), where[1]
        return next(each for each in self.servers if (each.host, each.port) == (host, port))


@contextmanager
def single(directory: Path, **settings: str) -> Iterator[Group]:
    """One server."""
    with ExitStack() as stack:
        [server] = _started(stack, directory, [{**DURABLE, **settings}])
        yield Group(f"redis://127.0.0.1:{server.port}", [server])


@contextmanager
def cluster(directory: Path, *, patience_ms: int = 2000) -> Iterator[Group]:
    """Three nodes with a third of the slots each; a node silent for `patience_ms` has failed."""
    settings = {
        **DURABLE,
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(patience_ms),
        "cluster-announce-ip": "127.0.0.1",
    }
    with ExitStack() as stack:
        servers = _started(stack, directory, [settings] * 3)
        clients = [stack.enter_context(closing(server.client())) for server in servers]
        bounds = [0, 5461, 10923, 16384]
        for client, first, end in zip(clients, bounds, bounds[1:], strict=False):
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
        for server in servers[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", server.port)
        until(lambda: all(_is_whole(client) for client in clients))
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        yield Group(f"redis+cluster://{hosts}", servers)


def wait_until_whole(group: Group) -> None:
    """Wait until each node of a cluster is up and sees all others up."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(server.client())) for server in group.servers]
        until(lambda: all(_is_whole(client) for client in clients))


@contextmanager
def split_cluster(directory: Path, network: SplitNetwork) -> Iterator[Group]:
    """A primary with a third of the slots on each of hosts 0 to 2, its replica on the next one."""
    settings = {
        **DURABLE,
        "bind": "* -::*",
        "protected-mode": "no",
        "cluster-enabled": "yes",
        "cluster-node-timeout": "1500",
    }
    with ExitStack() as stack:
        servers = [
            _on_host(stack, directory, network, host % 3, 7000 + host // 3, settings)
            for host in range(6)
        ]
        clients = [stack.enter_context(closing(server.client())) for server in servers]
        bounds = [0, 5461, 10923, 16384]
        for client, first, end in zip(clients, bounds, bounds[1:], strict=False):
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, end - 1)
        for server in servers[1:]:
            clients[0].execute_command("CLUSTER MEET", server.host, server.port)
        until(lambda: all(_is_whole(client) for client in clients))
        names: list[Any] = [client.execute_command("CLUSTER MYID") for client in clients]
        for number in range(3):
            replica = clients[3 + (number + 1) % 3]
            until(partial(replica.execute_command, "CLUSTER REPLICATE", names[number]))
        until(lambda: all(_in_step(client) for client in clients[:3]))
        hosts = ",".join(f"{server.host}:{server.port}" for server in servers[:3])
        yield Group(f"redis+cluster://{hosts}", servers)


@contextmanager
def split_sentinel(directory: Path, network: SplitNetwork) -> Iterator[Group]:
    """A primary on host 0, a replica on host 1, and a sentinel on each of three hosts."""
    open_to_all = {"bind": "* -::*", "protected-mode": "no"}
    first = network.address(0)
    with ExitStack() as stack:
        data = {**DURABLE, **open_to_all}
        servers = [_on_host(stack, directory, network, 0, 7000, data)]
        replica = {**data, "replicaof": f"{first} 7000"}
        servers.append(_on_host(stack, directory, network, 1, 7000, replica))
        primary = stack.enter_context(closing(servers[0].client()))
        until(lambda: _in_step(primary))
        watched = {
            **open_to_all,
            "sentinel monitor": f"paceline {first} 7000 2",
            "sentinel down-after-milliseconds": "paceline 500",
            "sentinel failover-timeout": "paceline 3000",
        }
        sentinels = [
            _on_host(stack, directory, network, host, 7100, watched, as_sentinel=True)
            for host in range(3)
        ]
        asked = [stack.enter_context(closing(server.client())) for server in sentinels]
        until(lambda: all(_knows_all(client) for client in asked))
        hosts = ",".join(f"{server.host}:{server.port}" for server in sentinels)
        yield Group(f"redis+sentinel://{hosts}/paceline", servers, sentinels)


def _on_host(
    stack: ExitStack,
    directory: Path,
    network: SplitNetwork,
    host: int,
    port: int,
    settings: dict[str, str],
    *,
    as_sentinel: bool = False,
) -> Server:
    server = Server(
        directory / f"{host}-{port}",
        port,
        settings,
        as_sentinel,
        network.address(host),
        network.inside(host),
    )
    server.start()
    stack.callback(server.kill)
    with closing(server.client()) as client:
        until(client.ping)
    return server


@contextmanager
def sentinel(directory: Path, *, patience_ms: int = 500) -> Iterator[Group]:
    """A primary and a replica with three sentinels; silent for `patience_ms` is down."""
    with ExitStack() as stack:
        servers = _started(stack, directory / "data", [DURABLE])
        replica = {**DURABLE, "replicaof": f"127.0.0.1 {servers[0].port}"}
        servers += _started(stack, directory / "replica", [replica])
        watched = {
            "bind": "127.0.0.1",
            "sentinel monitor": f"paceline 127.0.0.1 {servers[0].port} 2",
            "sentinel down-after-milliseconds": f"paceline {patience_ms}",
            "sentinel failover-timeout": "paceline 3000",
        }
        clients = [stack.enter_context(closing(server.client())) for server in servers]
        until(lambda: _in_step(clients[0]))
        sentinels = _started(stack, directory / "sentinel", [watched] * 3, as_sentinel=True)
        asked = [stack.enter_context(closing(server.client())) for server in sentinels]
        until(lambda: all(_knows_all(client) for client in asked))
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in sentinels)
        yield Group(f"redis+sentinel://{hosts}/paceline", servers, sentinels)


def until(is_so: Callable[[], Any], within_s: float = WITHIN_S) -> None:
    """Poll every 20 ms until the condition holds."""
    end_s = time.monotonic() + within_s
    while True:
        try:
            if is_so():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < end_s, "it did not come to be so"
        select([], [], [], 0.02)


def _started(
    stack: ExitStack, directory: Path, settings: list[dict[str, str]], *, as_sentinel: bool = False
) -> list[Server]:
    servers = [
        Server(directory / str(number), port, of_it, as_sentinel)
        for number, (port, of_it) in enumerate(
            zip(_free_ports(len(settings)), settings, strict=True)
        )
    ]
    for server in servers:
        server.start()
        stack.callback(server.kill)
    for server in servers:
        with closing(server.client()) as client:
            until(client.ping)
    return servers


def _free_ports(num_ports: int) -> list[int]:
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < num_ports:
            probe, above = (stack.enter_context(socket.socket()) for _ in range(2))
            probe.bind(("127.0.0.1", 0))
            if (port := probe.getsockname()[1]) > LAST_PORT:
                continue
            with suppress(OSError):  # in use
                above.bind(("127.0.0.1", port + BUS))
                ports.append(port)
    return ports


def _is_whole(client: redis.Redis) -> bool:
    """Whether the node knows all three, and that together they have every slot."""
    state: Any = client.execute_command("CLUSTER INFO")
    return state["cluster_state"] == "ok" and len(client.execute_command("CLUSTER SLOTS")) == 3


def _in_step(client: redis.Redis) -> bool:
    found: Any = client.info("replication")
    return bool(found["connected_slaves"] == 1 and found["slave0"]["state"] == "online")


def _knows_all(client: redis.Redis) -> bool:
    found: Any = client.sentinel_master("paceline")
    return bool(found["num-other-sentinels"] == 2 and found["num-slaves"] == 1)
