"""The Slurm scripts with fake `scontrol` and `paceline` on the PATH."""

import os
import subprocess
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[2] / "ops" / "slurm"
NODE = """NodeName=host-7 Arch=x86_64 CoresPerSocket=32
   State=IDLE+DRAIN ThreadsPerCore=2
   Reason=ECC errors "twice" [root@2026-11-21]
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script; returns its exit status and the arguments of `paceline`, one a line."""
    called = tmp_path / "called"

    def program(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def run(script, *arguments, shown, status=0):
        (tmp_path / "shown").write_text(shown)
        hosts = 'echo "host-7"'
        program("scontrol", f'[ "$2" = hostnames ] && {hosts} || cat {tmp_path}/shown')
        program("paceline", f"printf '%s\\n' \"$@\" >> {called}; exit {status}")
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
        environment |= {"SLURMD_NODENAME": "host-7", "PACELINE_ENV_FILE": "/dev/null"}
        command = ["/bin/sh", str(SLURM / script), *arguments]
        done = subprocess.run(command, env=environment, check=False, capture_output=True)
        return done.returncode, called.read_text().splitlines() if called.exists() else []

    return run


@pytest.mark.parametrize(
    ("state", "kind"),
    [("NODE_FAIL", "node-not-ready"), ("REQUEUED", "job-requeued"), ("TIMEOUT", "other")],
)
def test_epilog_annotates_a_failed_end(run, state, kind):
    status, arguments = run("paceline-epilog.sh", shown=f"JobId=42\n   JobState={state} Reason=X")
    assert status == 0
    assert arguments[:7] == [
        "annotate",
        "--match",
        "host=host-7",
        "--host",
        "host-7",
        "--kind",
        kind,
    ]
    assert f"Slurm job 42: {state}" in arguments
    assert arguments[-1] == f"slurm 42 host-7 {state}"


def test_epilog_says_nothing_of_a_normal_end_and_never_fails(run):
    assert run("paceline-epilog.sh", shown="   JobState=COMPLETED") == (0, [])
    assert run("paceline-epilog.sh", shown="   JobState=FAILED", status=2)[0] == 0


def test_drained_node_is_annotated_with_its_reason(run):
    status, arguments = run("paceline-node-event.sh", "host-7", shown=NODE)
    assert status == 0
    assert "node-drained" in arguments
    assert 'ECC errors "twice" [root@2026-11-21]' in arguments
