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
found = [kernels.num_missing(), double(4), sum(double.stats.cache_hits.values())]
print(*found, kernels.can_be_kept())
"""
DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


@pytest.fixture
def called(tmp_path):
    """Calls the kernel in a new process: missing before, result, cache hits, can be kept."""
    (tmp_path / "only_here.py").write_text(SOURCE)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}

    def call(before="", **environment):
        command = [sys.executable, "-c", before + CALL]
        environment = {**os.environ, **cache, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    return call


def test_what_was_compiled_is_read_where_nothing_can_be_written(called):
    assert called() == ["1", "8", "0", "True"]
    assert called(UNWRITABLE) == ["0", "8", "1", "False"]
    # Compiled for another processor, it is not what is asked for, and cannot be kept here.
    assert called(UNWRITABLE, NUMBA_CPU_NAME="generic") == ["1", "8", "0", "False"]


def test_an_index_that_was_cut_off_is_written_anew(called, tmp_path):
    called()
    [index] = (tmp_path / "cache").rglob("*.nbi")
    index.write_bytes(index.read_bytes()[:40])
    assert called() == ["1", "8", "0", "True"]
    assert called() == ["0", "8", "1", "True"]


@pytest.mark.nightly
def test_the_compiler_leaves_nothing_to_compile(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiler = [sys.executable, "-P", "-m", "app.diagnosis.warm_up"]
    both = [subprocess.Popen(compiler, env=environment) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    left = "from app.diagnosis import warm_up; warm_up.warm_up(); print(warm_up.num_missing(), "
    left += "sum(sum(each.stats.cache_misses.values()) for each in KERNELS))"
    left = f"from app.engine.kernels import KERNELS; {left}"
    done = subprocess.run([sys.executable, "-c", left], env=environment, stdout=subprocess.PIPE)
    assert done.stdout.split() == [b"0", b"0"]


def test_image_compiles_what_it_reads():
    places = re.findall(r"NUMBA_(CPU_NAME|CACHE_DIR)=(\S+)", DOCKERFILE.read_text())
    assert len(places) == 4
    assert len(set(places)) == 2
    volume = re.findall(r"^VOLUME (\S+)", DOCKERFILE.read_text(), re.MULTILINE)[0]
    assert not dict(places)["CACHE_DIR"].startswith(volume)
