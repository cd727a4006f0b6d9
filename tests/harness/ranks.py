"""Trainings on this machine: one process per rank; if one fails, all are ended."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from app.errors import Unavailable
from tests.harness.processes import free_port

ROOT = Path(__file__).parents[2]
_FORKED = Path(__file__).with_name("forked_ranks.py")


class TrainingFailed(Unavailable):
    """A rank failed, or the time limit passed; `output` is all that was printed."""

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(f"the training failed: {reason}")
        self.output = output


def run_ranks(
    module: str, arguments: list[str], num_ranks: int, directory: Path, within_s: float
) -> list[str]:
    """What each rank of a module's `main` has printed, its errors among it.

    Raises:
        TrainingFailed: one of them failed: the others, which would wait for it, are ended then.
    """
    # As a file, so that none of Paceline is imported; -P, since a torch.py lies beside it.
    command = [sys.executable, "-P", str(_FORKED), str(num_ranks), str(directory), module]
    log = directory / "ranks.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *arguments],
            env=_environment(num_ranks),
            stdout=out,
            stderr=out,
            start_new_session=True,  # so that all of them can be ended at once
        )
    try:
        failed = process.wait(within_s) != 0
        reason = "a rank ended with an error"
    except subprocess.TimeoutExpired:
        failed, reason = True, f"it was not done in {within_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    output = [each.read_text(errors="replace") for each in _logs(directory, num_ranks)]
    if failed:
        raise TrainingFailed(reason, "\n".join([*output, log.read_text(errors="replace")]))
    return output


def _logs(directory: Path, num_ranks: int) -> list[Path]:
    files = [directory / f"rank{rank}.log" for rank in range(num_ranks)]
    return [file for file in files if file.exists()]


def _environment(num_ranks: int) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(num_ranks),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
