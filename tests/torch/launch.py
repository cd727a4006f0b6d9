"""Start PyTorch programs, one process per rank, without importing PyTorch here."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.ranks import TrainingFailed, run_ranks

TIMEOUT_S = 540.0  # four processes on one busy core

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed: .ci/bootstrap installs 2.13.0 where Python is 3.11",
)


def train_ranks(num_ranks: int, directory: Path, module: str, *arguments: str) -> list[list[Any]]:
    """Run a module's `main` on each rank; return the JSON lines printed by each."""
    try:
        outputs = run_ranks(module, [*arguments], num_ranks, directory, TIMEOUT_S)
    except TrainingFailed as failed:
        pytest.fail(f"{failed}\n{failed.output}")
    return [[json.loads(line) for line in each.splitlines() if line[:1] == "{"] for each in outputs]
