"""Compiled kernels are found again, also where they can only be read, as in an image."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
from app.engine.kernels import kernel

@kernel
def double(value):
    return 2 * value
"""
# What a file system that can only be read, or is full, says to numba.
UNWRITABLE = """
import tempfile
from numba.core.caching import IndexDataCacheFile

def refuse(*_, **__):
    raise OSError(30, "Read-only file system")

tempfile.TemporaryFile = refuse
IndexDataCacheFile.save = refuse
"""
CALL = """
from app.engine import kernels
from only_here import double

kernels.KERNELS[:] = [double]
found = [kernels.are_compiled(), double(4), sum(double.stats.cache_hits.values())]
print(*found, kernels.can_be_kept())
"""
DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


@pytest.fixture
def called(tmp_path):
    """Calls the kernel in a new process: known before, result, cache hits, can be kept."""
    (tmp_path / "only_here.py").write_text(SOURCE)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}

    def call(before="", **environment):
        command = [sys.executable, "-c", before + CALL]
        environment = {**os.environ, **cache, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    return call


def test_what_was_compiled_is_read_where_nothing_can_be_written(called):
    assert called() == ["False", "8", "0", "True"]
    assert called(UNWRITABLE) == ["True", "8", "1", "True"]
    # Compiled for another processor, it is not what is asked for, and cannot be kept here.
    assert called(UNWRITABLE, NUMBA_CPU_NAME="generic") == ["False", "8", "0", "True"]


def test_image_compiles_what_it_reads():
    places = re.findall(r"NUMBA_(CPU_NAME|CACHE_DIR)=(\S+)", DOCKERFILE.read_text())
    assert len(places) == 4
    assert len(set(places)) == 2
    volume = re.findall(r"^VOLUME (\S+)", DOCKERFILE.read_text(), re.MULTILINE)[0]
    assert not dict(places)["CACHE_DIR"].startswith(volume)
