"""The fault matrix in short, for every change: each kind of process is killed once under load."""

from functools import partial

from tests.harness.trial import Trial


def test_each_process_killed_under_load_loses_nothing(stack, name):
    with Trial(stack, name) as trial:
        for killed in ("api-0", "consumer-0", "queue", "database"):
            if killed not in stack.processes:
                continue  # SQLite has no process
            trial.fault(partial(stack.kill, killed))
            if killed != "database":  # which starts only once its old backends are gone
                stack.start(killed)
            stack.wait_for_backends()
            trial.wait_for_steps(2)
        assert trial.finish()["violations"] == []
