"""Temporary files of tests in memory, since thousands of files are slow on a disk.

A killed process leaves the same files on both; only a power cut differs.
"""

import os
import shutil
import tempfile
from pathlib import Path

QUICK = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


def keep_files_in_memory() -> None:
    """Let temporary files be made in memory where there is room; TMPDIR says otherwise if set.

    In a container of Docker's usual kind there is none, and files go to the disk.
    """
    if "TMPDIR" in os.environ or not QUICK.is_dir():
        return
    if shutil.disk_usage(QUICK).free >= _ROOM_BYTES and os.access(QUICK, os.W_OK | os.X_OK):
        os.environ["TMPDIR"] = str(QUICK)
        tempfile.tempdir = None  # it may have been asked for before
