"""Translation of Redis and connection errors."""

import pytest
from redis.exceptions import OutOfMemoryError, RedisError

from app.errors import QueueFull, QueueUnavailable
from app.ingest.redis.nodes import translated

CLOSED = "unable to perform operation on <TCPTransport closed=True>; the handler is closed"


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (OutOfMemoryError("used memory > maxmemory"), QueueFull),
        (RedisError("no"), QueueUnavailable),
        (ConnectionResetError("cut"), QueueUnavailable),
        (RuntimeError(CLOSED), QueueUnavailable),  # uvloop's message
    ],
)
def test_transient_errors_become_retryable_queue_errors(error, ours):
    with pytest.raises(ours), translated():
        raise error


def test_other_runtime_errors_are_not_translated():
    with pytest.raises(RuntimeError, match="ours"), translated():
        raise RuntimeError("ours")
