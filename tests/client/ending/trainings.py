"""A training as a process of its own, and what is reported of its end."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.client.conftest import TOKEN

CLIENT = Path(__file__).parents[3] / "client"
TRAINING = """
    import ctypes, multiprocessing, os, signal, sys, time
    import paceline_client
    from paceline_client.ending.process_end import reporter

    run = paceline_client.start(
        "job", sys.argv[1], sys.argv[2], rank=3, dp_rank=1, stage=1, dp_size=2, pp_size=2,
        run_key="run-1", host="node-1",
    )
    with run.step(0), run.op("forward-compute"):
        pass
    until_s = time.monotonic() + 20
    while not reporter._watched and time.monotonic() < until_s:
        time.sleep(0.005)
"""
# Of the training, by their numbers, with their command lines. For a moment there may be two, as
# another starts the watcher and leaves it an orphan.
WATCHERS = """
    def watchers():
        found = {}
        for name in os.listdir("/proc"):
            try:
                command = open(f"/proc/{name}/cmdline", "rb").read()
            except OSError:
                continue
            if b"exit_watcher.py\\0%d\\0" % os.getpid() in command:
                found[int(name)] = command
        return found

    def wait_for_watchers(number):
        while len(found := watchers()) != number and time.monotonic() < until_s:
            time.sleep(0.005)
        return found

    def to_watchers(*numbers):
        for pid in watchers():
            for number in numbers:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
"""
WITHIN_S = 60.0

FAILED = {"outcome": "failed"}
TERMINATED = {"outcome": "terminated", "signal": signal.SIGTERM}
BY_SIGTERM = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"


# A shell has processes in its background ignore it, and they pass that on to their own.
TAKES_SIGINT = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"


def ended(paceline, last_lines, *, before="", launcher=(), after=lambda: None):
    """Exit status of a process, and the reports of its end but for its place.

    `launcher` is a command that starts it, and `after` is called once it has ended.
    """
    body = textwrap.dedent(TRAINING)
    script = "\n".join((TAKES_SIGINT, before, body, textwrap.dedent(last_lines)))
    process = subprocess.run(
        [*launcher, sys.executable, "-c", script, paceline.url, TOKEN],
        env={"PYTHONPATH": str(CLIENT), "PATH": ""},
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    after()
    paceline.wait_for(lambda: paceline.exits, WITHIN_S)
    place = {"epoch": 3, "rank": 3, "dp_rank": 1, "stage": 1, "host": "node-1"}
    assert all(report.items() >= place.items() for report in paceline.exits)
    return process.returncode, [
        {name: value for name, value in report.items() if name not in place}
        for report in paceline.exits
    ]
