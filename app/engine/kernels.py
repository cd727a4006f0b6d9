"""Compiled kernels, and threads for large work.

A kernel is compiled once per machine if the cache directory is writable, else once per process.
Kernels release the GIL, so large work runs on several cores.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

Function = Callable[..., Any]

# All kernels; a test checks that the warm-up compiles every one.
KERNELS: list[Any] = []


def kernel(function: Function) -> Function:
    """The function, compiled at its first call, without the GIL."""
    try:
        compiled: Function = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package's directory nor the user's can be written to.
        compiled = njit(nogil=True)(function)
    KERNELS.append(compiled)
    return compiled


def are_compiled() -> bool:
    """Whether the cache on disk has every kernel as it is now."""
    return all(_is_compiled(each) for each in KERNELS)


def _is_compiled(compiled: Any) -> bool:
    source, folder = Path(compiled.py_func.__code__.co_filename), compiled.stats.cache_path
    if folder is None:
        return False
    name = f"*.{compiled.py_func.__qualname__}-{compiled.py_func.__code__.co_firstlineno}.*.nbi"
    changed_s = source.stat().st_mtime
    return any(index.stat().st_mtime >= changed_s for index in Path(folder).glob(name))


@contextmanager
def one_compiler() -> Iterator[None]:
    """Waits until no other process fills the cache on disk, where there is one."""
    folder = KERNELS[0].stats.cache_path
    if folder is None:
        yield
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "compiling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


T = TypeVar("T")

# Below this many values a thread costs more than it saves.
WORTH_A_THREAD = 1 << 20
MAX_THREADS = 8


def in_parallel(size: int, count: int, part: Callable[[int, int], T]) -> list[T]:
    """Results of `part(first, end)` over ranges that cover `count`, for work on `size` values."""
    threads = _threads() if size >= WORTH_A_THREAD else 1
    bounds = [count * each // threads for each in range(threads + 1)]
    return all_of(size, [_call(part, first, end) for first, end in pairwise(bounds)])


def all_of(size: int, calls: Iterable[Callable[[], T]]) -> list[T]:
    """Results of independent calls in order; in parallel if `size` values are worth it."""
    calls = list(calls)
    if size < WORTH_A_THREAD or len(calls) < 2 or _threads() < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(_threads(), thread_name_prefix="engine") as pool:
        # Each in the caller's context, whose work budget it keeps to.
        begun = [pool.submit(copy_context().run, call) for call in calls]
        return [each.result() for each in begun]


def _call(part: Callable[[int, int], T], first: int, end: int) -> Callable[[], T]:
    return lambda: part(first, end)


def _threads() -> int:
    # Only Linux has the affinity of a process.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, MAX_THREADS)
