"""Start programs that need PyTorch, one process for each rank; nothing here imports it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.ranks import TrainingFailed, run_ranks

PATIENCE_S = 540.0  # four processes may share one busy core

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed: .ci/bootstrap installs 2.13.0 where Python is 3.11",
)


def trained(num_ranks: int, directory: Path, module: str, *arguments: str) -> list[list[Any]]:
    """What each rank of a module's `main` printed, as JSON line by line."""
    try:
        said = run_ranks(module, [*arguments], num_ranks, directory, PATIENCE_S)
    except TrainingFailed as failed:
        pytest.fail(f"{failed}\n{failed.output}")
    return [[json.loads(line) for line in each.splitlines() if line[:1] == "{"] for each in said]
