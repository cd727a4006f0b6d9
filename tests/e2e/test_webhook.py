"""From slow steps to a signed notification, and to the alert's resolution."""

import base64

from standardwebhooks.webhooks import Webhook

from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.alerts.http_receiver import receiver
from tests.e2e.producers import batch_of, push, register
from tests.e2e.stack import Stack, wait_until
from tests.secret_keys import KEY

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
NUM_STEPS = 4


def test_slow_job_is_notified_once_and_resolved_at_its_end(tmp_path):
    settings = {
        "webhook_secret": SECRET,
        "secret_key": KEY,
        "window_steps": "2",
        "alert_windows": "2",
        "alert_for_s": "0",
    }
    simulated = SimulatedJob(Parallelism(2, 2), 8, faults=(SlowWorker(1, 1, 1.8),))
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    with receiver() as hook, Stack(tmp_path, url, webhook_url=hook.url, **settings) as stack:
        epoch = register(stack, "slow", simulated, "run-1")
        for step in range(NUM_STEPS):
            trace = simulated.make([step])
            for dp_rank in range(2):
                for stage in range(2):
                    push(stack, "slow", batch_of(trace, epoch, dp_rank, stage, step))
        wait_until(lambda: bool(hook.requests), "people are notified")
        stack.http.post("/jobs/slow/end").raise_for_status()
        wait_until(
            lambda: alert_kinds(stack)[:1] == ["resolved"], "the alert is resolved with the job"
        )
        assert alert_kinds(stack) == ["resolved", "firing", "pending"]
    [(_, headers, body)] = hook.requests
    told = Webhook(SECRET).verify(body, headers)
    assert told["type"] == "alert.firing"
    [alert] = told["data"]["alerts"]
    [culprit] = alert["finding"]["culprits"]
    assert culprit["dp_rank"] == culprit["stage"] == 1
    assert alert["slowdown"] >= 1.1


def alert_kinds(stack):
    """The alert's events, newest first. Its resolution is notified after five minutes."""
    items = stack.get("/alerts/transitions", job="slow")["items"]
    return [item["kind"] for item in items if item["rule"] == "slowdown"]
