"""Recorder of one worker for the client's tests, with short backoff."""

from paceline_client import start
from paceline_client.sending.retry import Backoff
from paceline_client.sending.sender import Sender

from tests.client.conftest import TOKEN

WITHIN_S = 30.0  # limit for background work; not reached in a passing test

_senders: list[Sender] = []


def recorder(url, **changes):
    options = {
        "rank": 3,
        "dp_rank": 1,
        "stage": 1,
        "dp_size": 2,
        "pp_size": 2,
        "vpp_size": 2,
        "run_key": "run-1",
        "host": "node-1",
        "flush_interval_s": 60.0,  # batches end with steps even on a slow machine
        "gc_pauses": False,  # would add operations at random
        "backoff": Backoff(0.001, 0.01),
    }
    if "topology" in changes:
        for name in ("rank", "dp_rank", "stage", "dp_size", "pp_size", "vpp_size"):
            del options[name]
    run = start("my job", url, TOKEN, **{**options, **changes})
    if run._sender is not None:
        _senders.append(run._sender)
    return run


def end_senders():
    """End leftover senders: their backoff draws random numbers.

    Hypothesis would attribute these to the strategy of the running test.
    """
    while _senders:
        sender = _senders.pop()
        if sender._thread.is_alive():
            sender.finish()
            sender.join(WITHIN_S)


def close_unreachable(run):
    """Close with a short timeout while the server is unreachable, and join the sender thread."""
    run.close(0.05)
    run._sender.join(WITHIN_S)
    assert not run._sender._thread.is_alive()
