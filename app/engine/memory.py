"""glibc malloc settings: keep freed memory for the next window.

A window of 100,000 operations needs some 20 MB. By default glibc returns each block to the system,
and page faults of the next window take a quarter of the time for loading and analysing it.
"""

import ctypes
import sys

# Of <malloc.h>; both take bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 256 << 20
# The maximum of glibc; larger blocks are still returned at once.
MAX_KEPT_BLOCK_BYTES = 32 << 20


# For processes that read requests: keep blocks of usual batches, return those of huge bodies.
MAX_READ_BLOCK_BYTES = 2 << 20
READ_KEPT_BYTES = 16 << 20


def keep_freed_memory() -> bool:
    """Keep large freed blocks in this process; False if the C library is not glibc."""
    return _keep(largest_bytes=MAX_KEPT_BLOCK_BYTES, kept_bytes=KEPT_BYTES)


def release_large_blocks() -> bool:
    """Return large freed blocks; by default glibc raises its threshold with each larger block.

    After one body of 32 MB it would keep twice as much forever. False if not glibc.
    """
    return _keep(largest_bytes=MAX_READ_BLOCK_BYTES, kept_bytes=READ_KEPT_BYTES)


def _keep(*, largest_bytes: int, kept_bytes: int) -> bool:
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, largest_bytes) and mallopt(_TRIM_THRESHOLD, kept_bytes))
