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


def keep_freed_memory() -> bool:
    """Whether this process will do so from now on: where the C library is not glibc, it cannot."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(kept)
