"""Keep memory that was freed, for the next window: getting it anew costs as much as the work.

A window of 100,000 operations needs some 20 MB in pieces. By default the C library gives each
piece back to the system, and every page of the next one is a fault: a quarter of the time that
loading and analysing takes.
"""

import ctypes
import sys

# Of <malloc.h>; both take bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
# The largest that glibc takes; larger pieces still go back at once.
LARGEST_KEPT_BYTES = 32 << 20


# Of a process that reads what anybody sends: the usual batch's pieces stay, a huge body's go.
LARGEST_READ_KEPT_BYTES = 2 << 20
READ_KEPT_BYTES = 16 << 20


def keep_freed_memory() -> bool:
    """Whether this process will do so from now on: where the C library is not glibc, it cannot."""
    return _keep(largest_bytes=LARGEST_KEPT_BYTES, kept_bytes=KEPT_BYTES)


def give_large_memory_back() -> bool:
    """The same for a process that keeps little: by itself the C library keeps ever larger pieces.

    After one body of 32 MB it would keep twice as much for good.
    """
    return _keep(largest_bytes=LARGEST_READ_KEPT_BYTES, kept_bytes=READ_KEPT_BYTES)


def _keep(*, largest_bytes: int, kept_bytes: int) -> bool:
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, largest_bytes) and mallopt(_TRIM_THRESHOLD, kept_bytes))
