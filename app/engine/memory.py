"""glibc malloc settings: keep freed memory for the next window.

A window of 100,000 operations needs some 20 MB. By default glibc returns each block to the system,
and page faults of the next window take a quarter of the time for loading and analysing it.
"""

import ctypes
import sys

# Of <malloc.h>; thresholds are in bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MAX_ARENAS = -1, -3, -8
KEPT_BYTES = 256 << 20
# The maximum of glibc; larger blocks are still returned at once.
MAX_KEPT_BLOCK_BYTES = 32 << 20


# For processes that read requests: keep blocks of usual batches, return those of huge bodies.
MAX_READ_BLOCK_BYTES = 2 << 20
READ_KEPT_BYTES = 16 << 20
NUM_ARENAS = 2  # heaps; Python's lock lets one thread allocate at a time anyway


def keep_freed_memory() -> bool:
    """Keep large freed blocks in this process; False if the C library is not glibc."""
    return _keep(largest_bytes=MAX_KEPT_BLOCK_BYTES, kept_bytes=KEPT_BYTES)


def release_large_blocks() -> bool:
    """Return large freed blocks; by default glibc raises its threshold with each larger block.

    After one body of 32 MB it would keep twice as much forever. And each new thread would get a
    heap of its own, up to eight a core, whose free blocks no other thread uses: memory would
    grow for as long as there are new threads. False if not glibc.
    """
    return _set(_MAX_ARENAS, NUM_ARENAS) and _keep(
        largest_bytes=MAX_READ_BLOCK_BYTES, kept_bytes=READ_KEPT_BYTES
    )


def return_freed_memory() -> bool:
    """Return to the system what was freed between blocks in use; False if not glibc.

    It takes some 0.1 s a GB, so it is for the end of large work.
    """
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


def _keep(*, largest_bytes: int, kept_bytes: int) -> bool:
    return _set(_MMAP_THRESHOLD, largest_bytes) and _set(_TRIM_THRESHOLD, kept_bytes)


def _set(parameter: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
