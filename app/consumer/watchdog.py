"""Ends a consumer's process that hangs in one job's work, and none that is only slow.

The log then has every thread's traceback, the supervisor restarts the process, and its trials show
which entry caused it. On a starved machine the same work takes ten times as long by the clock, but
no more processor time: that counts.
"""

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable

from app.consumer.context import MAX_WITHOUT_PROGRESS_S

_LOOK_EVERY_S = 5.0
_MAX_THREADS = 8  # as `app.engine.kernels` has at most
# A thread that waits for no answer uses none of the processor; one that is starved uses a little.
_IDLE_CPU_S = 0.05


class Watchdog:
    """Ends this process unless it is restarted again, by the thread that made it.

    So it does once the process has used all its cores for MAX_WITHOUT_PROGRESS_S, whatever holds
    the interpreter; or once that thread has not used it at all for as long.
    """

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        """`end` ends the process in which nothing moves; None: with tracebacks, as a crash."""
        self._end = end or _end_with_tracebacks
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._lock = threading.Lock()
        self._restarted_s = self._moved_s = time.monotonic()
        self._used_s = 0.0
        self._stopped = threading.Event()
        # The traceback first, then the default of the signal: the end of the process.
        faulthandler.register(signal.SIGPROF, all_threads=True, chain=True)
        # All threads count, those of the engine among them.
        self._most_s = MAX_WITHOUT_PROGRESS_S * min(_MAX_THREADS, os.cpu_count() or 1)
        signal.setitimer(signal.ITIMER_PROF, self._most_s)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def restart(self) -> None:
        """There is progress."""
        now_s = time.monotonic()
        if now_s - self._restarted_s >= 1.0:  # thousands of jobs' turns a second say so
            with self._lock:
                self._restarted_s = self._moved_s = now_s
            signal.setitimer(signal.ITIMER_PROF, self._most_s)

    def stop(self) -> None:
        """The process ends by itself."""
        self._stopped.set()
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            if self.has_stood_still(time.monotonic()):
                self._end()

    def has_stood_still(self, now_s: float) -> bool:
        """Whether the thread has neither moved nor said so for MAX_WITHOUT_PROGRESS_S."""
        used_s = time.clock_gettime(self._cpu_clock)
        with self._lock:
            if used_s - self._used_s >= _IDLE_CPU_S:
                self._used_s, self._moved_s = used_s, now_s
            return now_s - self._moved_s >= MAX_WITHOUT_PROGRESS_S


def _end_with_tracebacks() -> None:
    faulthandler.dump_traceback(all_threads=True)
    os.kill(os.getpid(), signal.SIGKILL)
