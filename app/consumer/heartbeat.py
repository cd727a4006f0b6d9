"""Signs of life: leases outlast long work, and work without end is put an end to."""

import faulthandler
import threading

import structlog

from app.consumer.leases import Leases
from app.errors import Unavailable

log = structlog.get_logger()

# The longest honest turn closes a window of 16 million operations, in a third of this.
LONGEST_TURN_S = 120.0


def beat(leases: Leases, every_s: float, stop: threading.Event) -> None:
    """Renew the leases until told to stop, however long the work in another thread takes.

    A process that is frozen or dead renews nothing, so its shards go to others.
    """
    while not stop.wait(every_s):
        try:
            leases.renew()
        except Unavailable as error:
            log.warning("leases not renewed", reason=str(error))


def watch_turn() -> None:
    """End this process if the next call does not come in time: its work has no end.

    The log then has every thread's traceback, the process's supervisor starts it again, and the
    entry that did it is found out by how often it comes again.
    """
    faulthandler.dump_traceback_later(LONGEST_TURN_S, exit=True)


def unwatch() -> None:
    """No further call of `watch_turn` will come."""
    faulthandler.cancel_dump_traceback_later()
