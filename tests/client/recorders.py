"""Recorders for the client's tests: that of one worker, quick to try again."""

from paceline_client import start
from paceline_client.sending.retry import Backoff
from paceline_client.sending.sender import Sender

from tests.client.conftest import TOKEN

WITHIN_S = 30.0  # for what happens in the background: never reached where all is well

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
        "flush_interval_s": 60.0,  # batches end where steps do, however slow the machine
        "gc_pauses": False,  # or there would be one more operation now and then
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
    """End those that a test has left: trying again they ask for random numbers, as Hypothesis does.

    It takes that for a strategy that does so, in whichever test it runs just then.
    """
    while _senders:
        sender = _senders.pop()
        if sender._thread.is_alive():
            sender.finish()
            sender.join(WITHIN_S)


def closed(run):
    """Close it while the server is away, and wait for the end of its thread, which comes soon."""
    run.close(0.4)
    run._sender.join(WITHIN_S)
    assert not run._sender._thread.is_alive()
