"""A network of its own in which a name server gives another answer each time; prints what happened.

Run under `unshare --mount --net`: it sets the address of the machine's name server, and gives
loopback a public address, so that nothing of it leaves this process's world.

93.184.216.34    a receiver on the public Internet
127.0.0.1        the trap, on the same port
"""

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.alerts.guard import SsrfGuard, operator_guard
from app.errors import Blocked

PUBLIC = "93.184.216.34"
TRAP = "127.0.0.1"
PORT = 8080
_A_RECORD = 1


class NameServer:
    """Answers A queries with what `plan` says of the number of earlier ones; no time to live."""

    def __init__(self, plan: Callable[[str, int], list[str]]) -> None:
        self._plan = plan
        self.asked: dict[str, int] = {}
        self._line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._line.bind((TRAP, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            query, client = self._line.recvfrom(512)
            self._line.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while size := query[at]:
            labels.append(query[at + 1 : at + 1 + size].decode())
            at += 1 + size
        question = query[12 : at + 5]
        (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
        found: list[str] = []
        if kind == _A_RECORD:
            name = ".".join(labels)
            number = self.asked.get(name, 0)
            self.asked[name] = number + 1
            found = self._plan(name, number)
        head = query[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0)
        record = b"\xc0\x0c" + struct.pack("!HHIH", _A_RECORD, 1, 0, 4)
        return head + question + b"".join(record + socket.inet_aton(each) for each in found)


class Listener:
    """Answers 204 to everybody, and counts them."""

    def __init__(self, address: str) -> None:
        self.hits = 0
        self._listener = socket.create_server((address, PORT))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            line, _ = self._listener.accept()
            self.hits += 1
            with line:
                line.recv(65_536)
                line.sendall(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")


@contextmanager
def world() -> Iterator[None]:
    """Loopback is up, has a public address, and its name server is ours."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{PUBLIC}/32", "dev", "lo"], check=True)
    own = Path(sys.argv[1]) / "resolv.conf"
    own.write_text(f"nameserver {TRAP}\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", str(own), "/etc/resolv.conf"], check=True)
    yield


def plan(name: str, number: int) -> list[str]:
    """The answer to the query of this number, from 0."""
    if name.startswith("both"):
        return [PUBLIC, TRAP]
    if name.startswith("turns"):  # public, loopback, public, ...
        return [TRAP if number % 2 else PUBLIC]
    return [PUBLIC] if number == 0 else [TRAP]


def posted(guard: SsrfGuard, name: str) -> str:
    """What became of one message."""
    try:
        reply = guard.post(f"http://{name}:{PORT}/hook", headers={}, body=b"{}")
    except Blocked:
        return "blocked"
    return str(reply.status)


def main() -> None:
    """Try every way, and print the outcome as JSON."""
    with world():
        names, public, trap = NameServer(plan), Listener(PUBLIC), Listener(TRAP)
        guard = SsrfGuard(allows_http=True, ports=frozenset({PORT}))
        outcome = {
            "first public, then loopback": [posted(guard, "later.example") for _ in range(3)],
            "each in turn": [posted(guard, "turns.example") for _ in range(6)],
            "both at once": [posted(guard, "both.example")],
        }
        guard.connect(f"http://saved.example:{PORT}/hook")  # as when a receiver is saved
        outcome["public when it was saved"] = [posted(guard, "saved.example")]
        hits = {"public": public.hits, "trap": trap.hits}
        # The trap would be sprung: the operator's own receiver may be anywhere.
        sprung = posted(operator_guard(guard), "later.example"), trap.hits
        told = {"outcome": outcome, "hits": hits, "sprung": sprung, "asked": names.asked}
        sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
