"""The running API against its OpenAPI document, with all checks of Schemathesis."""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "benchmarks", "schema"]


def test_every_answer_matches_the_openapi_document():
    # Five minutes of it are `python -m benchmarks schema --minutes 5`.
    command = [*COMMAND, "--examples", "1", "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    failures = ended.stderr[ended.stderr.find("FAILURES") :]
    assert ended.returncode == 0, failures
    found = json.loads(ended.stdout)
    assert found["passed"] is True
    assert found["failures"] == 0
    assert found["operations"] >= 26
    assert found["requests"] > 1000
