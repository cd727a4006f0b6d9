"""SIGTERM to all processes of a service, a Slurm step or a user: the watcher gets it as well."""

import os
import shlex
import signal
import sys

import pytest

from tests.client.ending.trainings import BY_SIGTERM, TERMINATED, WATCHERS, ended

# With the training's own handler, as one that saves a checkpoint.
ENDS_WELL = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(4))"
# A script that wants to end quietly where nobody reads its output.
DIES_OF_PIPES = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)"
SIGNALS = "signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1"


@pytest.fixture
def slow_python(tmp_path):
    """An interpreter that starts no sooner than the other value is called."""
    gate, program = tmp_path / "gate", tmp_path / "python"
    os.mkfifo(gate)
    program.write_text(
        f'#!/bin/sh\nread _ < {shlex.quote(str(gate))}\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o700)

    with gate.open("rb+", buffering=0) as opened:  # for both, as only that waits for nobody
        yield f"sys.executable = {str(program)!r}", lambda: opened.write(b"\n")


@pytest.mark.parametrize(
    ("before", "status"),
    [pytest.param("", -signal.SIGTERM, marks=pytest.mark.nightly), (ENDS_WELL, 4)],
)
def test_a_signal_to_all_processes_does_not_end_the_watcher(paceline, before, status):
    script = WATCHERS + f"\n    wait_for_watchers(1)\n    to_watchers({SIGNALS})\n    {BY_SIGTERM}"
    assert ended(paceline, script, before=before) == (status, [TERMINATED])


@pytest.mark.nightly
@pytest.mark.parametrize(("before", "status"), [("", -signal.SIGTERM), (ENDS_WELL, 4)])
def test_a_signal_to_a_watcher_that_is_only_starting_does_not_end_it(
    paceline, slow_python, before, status
):
    choose, open_gate = slow_python
    script = WATCHERS + f"\n    wait_for_watchers(1)\n    to_watchers({SIGNALS})\n    {BY_SIGTERM}"
    before = f"import sys\n{choose}\n{before}"
    assert ended(paceline, script, before=before, after=open_gate) == (status, [TERMINATED])


@pytest.mark.nightly
def test_closing_does_not_wait_for_an_interpreter_that_starts_slowly(paceline, slow_python):
    choose, open_gate = slow_python
    script = """
        began_s = time.monotonic()
        run.close(timeout_s=1.0)
        if time.monotonic() - began_s > 5.0:
            os._exit(9)
    """
    found = ended(paceline, script, before=f"import sys\n{choose}", after=open_gate)
    assert found == (0, [{"outcome": "finished"}])
    assert paceline.steps_done


@pytest.mark.nightly
def test_without_its_watcher_a_training_still_handles_sigterm_itself(paceline):
    script = (
        WATCHERS
        + f"""
    wait_for_watchers(1)
    to_watchers(signal.SIGKILL)
    wait_for_watchers(0)
    # It then reports by itself, within half a second: a busy machine may take longer.
    paceline_client.shutdown.EXIT_S = sys.modules[type(reporter).__module__].LAST_S = 20.0
    {BY_SIGTERM}
    """
    )
    status, reports = ended(paceline, script, before=f"{ENDS_WELL}\n{DIES_OF_PIPES}")
    assert (status, reports) == (4, [{"outcome": "finished"}])
