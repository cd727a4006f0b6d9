"""Names to addresses, within two seconds, whatever the machine's resolver does."""

import socket
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

# All addresses of a name, as text. Raises OSError, of which TimeoutError is one.
Resolver = Callable[[str], Sequence[str]]

TIMEOUT_S = 2.0
_MOST_AT_ONCE = 32


class SystemResolver:
    """The machine's own resolver. It cannot be interrupted, so it works in threads of its own.

    Of those that hang there are at most `most_at_once`; who comes then waits his two seconds, too.
    """

    def __init__(
        self,
        *,
        timeout_s: float = TIMEOUT_S,
        most_at_once: int = _MOST_AT_ONCE,
        lookup: Callable[..., Sequence[Any]] = socket.getaddrinfo,
    ) -> None:
        self._timeout_s = timeout_s
        self._room = threading.BoundedSemaphore(most_at_once)
        self._lookup = lookup

    def __call__(self, host: str) -> Sequence[str]:
        """All its addresses, as text.

        Raises:
            TimeoutError: they are not known in time.
            OSError: there are none.
        """
        if not self._room.acquire(timeout=self._timeout_s):
            raise TimeoutError("too many names are being resolved")
        answers: SimpleQueue[Sequence[str] | OSError] = SimpleQueue()
        # A daemon: one that hangs must not keep the process from ending.
        threading.Thread(
            target=self._look_up, args=(host, answers), name="resolve", daemon=True
        ).start()
        try:
            found = answers.get(timeout=self._timeout_s)
        except Empty:
            raise TimeoutError("the name was not resolved in time") from None
        if isinstance(found, OSError):
            raise found
        return found

    def _look_up(self, host: str, answers: SimpleQueue[Sequence[str] | OSError]) -> None:
        try:
            found = self._lookup(host, None, type=socket.SOCK_STREAM)
            answers.put([str(sockaddr[0]) for *_, sockaddr in found])
        except OSError as error:
            answers.put(error)
        except UnicodeError:
            answers.put(OSError("the name is none"))
        finally:
            self._room.release()
