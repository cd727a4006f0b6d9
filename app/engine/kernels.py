"""Compiled kernels, and threads for large work.

A kernel is compiled once per machine if the cache directory is writable, else once per process.
Kernels release the GIL, so large work runs on several cores.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from numba.core.registry import cpu_target
from numba.core.types.misc import unliteral

Function = Callable[..., Any]

# All kernels; a test checks that the warm-up compiles every one.
KERNELS: list[Any] = []


class _InstalledCache(UserProvidedCacheLocator):  # type: ignore[misc]
    """The directory that NUMBA_CACHE_DIR names: where it has the kernel, reading it is enough."""

    def ensure_cache_path(self) -> None:
        name = f"*-{self._lineno}.*.nbi"
        if not any(Path(self.get_cache_path()).glob(name)):
            super().ensure_cache_path()


class _CacheFiles(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_InstalledCache, *CompileResultCacheImpl._locator_classes)


class _Cache(FunctionCache):  # type: ignore[misc]
    """A kernel's machine code on disk."""

    _impl_class = _CacheFiles

    def save_overload(self, sig: Any, data: Any) -> None:
        # An image's kernels can only be read, and disks become full: it runs without.
        with suppress(OSError):
            super().save_overload(sig, data)

    def is_filled(self) -> bool:
        """Whether it has the kernel as it is now, for this kind of processor."""
        processor = cpu_target.target_context.codegen().magic_tuple()
        try:
            return any(key[1] == processor for key in self._cache_file._load_index())
        except OSError:
            return False
        except (EOFError, IndexError, UnpicklingError, ValueError):
            # Cut off when the machine lost power: numba would fail at it at every call.
            with suppress(OSError):
                Path(self._cache_file._index_path).unlink()
            return False


def kernel(function: Function) -> Any:
    """The function, compiled at its first call, without the GIL.

    Rows are copied by a loop: an assignment of slices compiles the text of its error, in 3 s.
    """
    compiled: Any = njit(nogil=True)(function)
    # Else numba compiles it once more for every constant with which another kernel calls it.
    inherited = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: inherited(
        [unliteral(arg) for arg in args],
        {name: unliteral(arg) for name, arg in kws.items()},
    )
    # Nowhere to write to, neither the package's directory nor the user's, is no reason to fail.
    with suppress(RuntimeError):
        compiled._cache = _Cache(function)
    KERNELS.append(compiled)
    return compiled


def num_missing() -> int:
    """Number of kernels that the cache on disk lacks as they are now."""
    caches = (compiled._cache for compiled in KERNELS)
    return sum(not (isinstance(cache, _Cache) and cache.is_filled()) for cache in caches)


def can_be_kept() -> bool:
    """Whether there is a cache on disk, and room to write to it."""
    if not isinstance(KERNELS[0]._cache, _Cache):
        return False
    folder = Path(KERNELS[0]._cache.cache_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


@contextmanager
def one_compiler() -> Iterator[None]:
    """Waits until no other process fills the cache on disk, where there is one to be filled."""
    with ExitStack() as held:
        if can_be_kept():
            lock = Path(KERNELS[0]._cache.cache_path, "compiling.lock")
            with suppress(OSError):
                fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)
        yield


T = TypeVar("T")

# Below this many values a thread costs more than it saves.
WORTH_A_THREAD = 1 << 20
MAX_THREADS = 8


def in_parallel(size: int, count: int, part: Callable[[int, int], T]) -> list[T]:
    """Results of `part(first, end)` over ranges that cover `count`, for work on `size` values."""
    threads = _threads() if size >= WORTH_A_THREAD else 1
    bounds = [count * thread // threads for thread in range(threads + 1)]
    return all_of(size, [partial(part, *ends) for ends in pairwise(bounds)])


def all_of(size: int, calls: Iterable[Callable[[], T]]) -> list[T]:
    """Results of independent calls in order; in parallel if `size` values are worth it."""
    calls = list(calls)
    if size < WORTH_A_THREAD or len(calls) < 2 or _threads() < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(_threads(), thread_name_prefix="engine") as pool:
        # Each in the caller's context, whose work budget it keeps to.
        begun = [pool.submit(copy_context().run, call) for call in calls]
        return [future.result() for future in begun]


def _threads() -> int:
    # Only Linux has the affinity of a process.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, MAX_THREADS)
