"""Start programs that need PyTorch, one process for each rank; nothing here imports it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import free_port

ROOT = Path(__file__).parents[2]
PATIENCE_S = 540.0  # four processes may share one busy core

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed: .ci/bootstrap installs 2.13.0 where Python is 3.11",
)


def run_ranks(module: str, num_ranks: int, directory: Path, *arguments: str) -> list[list[Any]]:
    """What each rank printed, as JSON line by line."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(num_ranks),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    files = [directory / f"rank{rank}.log" for rank in range(num_ranks)]
    processes = [
        _start([sys.executable, "-m", module, *arguments], environment, rank, file)
        for rank, file in enumerate(files)
    ]
    try:
        codes = [process.wait(PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * num_ranks, "\n".join(file.read_text() for file in files)
    return [_json_lines(file) for file in files]


def _start(
    command: list[str], environment: dict[str, str], rank: int, file: Path
) -> "subprocess.Popen[bytes]":
    here = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    with file.open("wb") as log:
        return subprocess.Popen(command, env=here, cwd=ROOT, stdout=log, stderr=log)


def _json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]
