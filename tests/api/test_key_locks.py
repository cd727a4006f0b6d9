"""Who wants the same waits; who wants something else does not."""

import contextlib

import pytest

from app.api.key_locks import KeyLocks


def test_many_keys_are_held_at_once_and_forgotten_when_done():
    locks = KeyLocks()
    with contextlib.ExitStack() as held:
        for key in range(100):
            held.enter_context(locks.of(key))
        assert len(locks) == 100
    assert len(locks) == 0


def test_a_failure_frees_the_key():
    locks = KeyLocks()
    with pytest.raises(LookupError), locks.of("a"):
        raise LookupError
    with locks.of("a"):
        assert len(locks) == 1
