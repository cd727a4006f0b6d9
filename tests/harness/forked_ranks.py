"""Runs a module's `main` once for each rank; imports it once, since PyTorch takes seconds of that.

python -P forked_ranks.py NUM_RANKS DIRECTORY MODULE [ARGUMENT ...]
"""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def main() -> None:
    """All ranks, each with a log in the directory; when one fails, the others are ended."""
    num_ranks, directory, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    train = importlib.import_module(module).main
    running = {_forked(train, rank, Path(directory)) for rank in range(int(num_ranks))}
    while running:
        ended, status = os.wait()
        running.discard(ended)
        if status:
            for process in running:
                os.kill(process, signal.SIGKILL)
            sys.exit(1)


def _forked(train: Callable[[], None], rank: int, directory: Path) -> int:
    """The process that trains as this rank."""
    process = os.fork()
    if process == 0:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        log = os.open(directory / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os._exit(_code_of(train))
    return process


def _code_of(train: Callable[[], None]) -> int:
    """0 where it returns: what it has printed is written then."""
    try:
        train()
        code = 0
    except SystemExit as ended:
        code = 1 if ended.code else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
