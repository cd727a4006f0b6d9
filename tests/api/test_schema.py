"""The running API, held to its own description by Schemathesis with all its checks."""

import json
import subprocess
import sys

COMMAND = [sys.executable, "-m", "app.cli", "bench", "schema"]


def test_every_answer_is_as_the_description_says():
    # Five minutes of it are `paceline bench schema --minutes 5`.
    command = [*COMMAND, "--examples", "2", "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    said = ended.stderr[ended.stderr.find("FAILURES") :]
    assert ended.returncode == 0, said
    found = json.loads(ended.stdout)
    assert found["passed"] is True
    assert found["failures"] == 0
    assert found["operations"] >= 26
    assert found["requests"] > 1000
