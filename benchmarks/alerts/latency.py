"""How long after the data show a slow window does the first message arrive?

Measured for a job's first notification, and for a later alert of the same rule on it after the
group interval: within the interval, it waits for its end.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.synth.faults.fault import FaultSteps
from tests.harness.alerts.crashes import NOTIFIED_WITHIN_S
from tests.harness.alerts.listener import Inbox
from tests.harness.alerts.receivers import settings_for
from tests.harness.alerts.slow_jobs import SLOW_JOB
from tests.harness.load import Load
from tests.harness.processes import wait_until
from tests.harness.stack import SETTINGS, TOKEN, Stack

# Limit beyond the rule's `for` time, the group wait included.
LIMIT_S = 2.0
GROUP_WAIT_S = 1.0
_INTERVAL_S = 1.0
WORKER = "worker"
# Each of the two slow workers begins in a window of its own.
_WINDOW_STEPS = int(SETTINGS["window_steps"])
_FIRST, _SECOND = SLOW_JOB.faults
IN_TURN = replace(SLOW_JOB, faults=(_FIRST, replace(_SECOND, when=FaultSteps(_WINDOW_STEPS))))


def settings_with_default_wait(inbox: Inbox, directory: Path) -> dict[str, str]:
    """Rules fire at the first slow window; group wait and interval are 1 s."""
    return settings_for(inbox, directory) | {
        "alert_group_wait_s": f"{GROUP_WAIT_S:g}",
        "alert_group_interval_s": f"{_INTERVAL_S:g}",
    }


def measured_latency(stack: Stack, inbox: Inbox, num_jobs: int) -> dict[str, Any]:
    """Seconds from the last acknowledged batch of a window to the first attempt, and what is late.

    Of each job two windows count: the one of its first alert, and the one of a second alert of the
    same rule, after the group interval.
    """
    delays = [_delays_s(stack, inbox, f"late-{number}") for number in range(num_jobs)]
    first, second = ([each[index] for each in delays] for index in (0, 1))
    late = sum(delay > LIMIT_S for delay in (*first, *second))
    wrong = [f"{late} of {2 * num_jobs} were told after more than {LIMIT_S:g} s"] if late else []
    return {"first_alert": _figures(first), "second_of_group": _figures(second), "wrong": wrong}


def _figures(delays_s: Sequence[float]) -> dict[str, float]:
    shares = {f"p{share}_s": float(np.percentile(delays_s, share)) for share in (50, 99)}
    return {name: round(delay_s, 2) for name, delay_s in shares.items()}


def _delays_s(stack: Stack, inbox: Inbox, job: str) -> tuple[float, float]:
    with closing(Load(stack.ports, TOKEN, stack.oracle.client(), job, IN_TURN)) as load:
        load.register()
        first_notified_s = _delay_s(load, inbox, 1)
        time.sleep(2 * _INTERVAL_S)
        second_s = _delay_s(load, inbox, 2)
        load.end()
    return first_notified_s, second_s


def _delay_s(load: Load, inbox: Inbox, num_alerts: int) -> float:
    """Seconds until a notification lists this many of the job's slow workers."""
    load.push_steps(_WINDOW_STEPS)
    shown_s = time.monotonic()
    wait_until(
        lambda: inbox.first_notified_s(load.job, WORKER, num_alerts) is not None,
        f"{load.job} is notified",
        NOTIFIED_WITHIN_S,
    )
    return (inbox.first_notified_s(load.job, WORKER, num_alerts) or shown_s) - shown_s
