"""`python -m benchmarks client`, briefly: figures that do not depend on the machine's load."""

import json

import pytest

from tests.benchmarks.running import run_benchmark

pytestmark = pytest.mark.long  # CI is short of minutes; `pytest -m long` runs it


def test_recording_cost_and_bytes_per_operation_are_printed():
    done = run_benchmark("client", "--ops", "2000", "--steps", "1")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert 0 < figures["record_p50_us"] <= figures["record_p99_us"]
    assert figures["bytes_per_op"] < 10
    assert figures["microbatches"] == 16
    assert figures["growing_blocks"] < 200  # of 2,000 operations
    assert figures["dropped"] == 0
