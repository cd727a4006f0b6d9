"""JSON of the fleet's lines: decoded once while it is asked for, and then forgotten."""

import msgspec

from app.store.fleet import DecodedTexts
from tests.api.server import Clock


def test_texts_that_nobody_asks_for_and_those_over_the_limit_are_forgotten():
    clock, text = Clock(), '{"cause": "slow-worker"}'
    known = DecodedTexts(msgspec.json.decode, max_texts=2, fresh_s=60.0, monotonic=clock)
    first = known.get(text)
    assert first == {"cause": "slow-worker"}
    for _ in range(3):
        clock.now_s += 50.0
        known.forget_unused()
        assert known.get(text) is first
    for _ in range(2):
        clock.now_s += 61.0
        known.forget_unused()
    second = known.get(text)
    assert second is not first
    for _ in range(2):
        for number in range(3):
            known.get(str(number))
        known.forget_unused()
    assert known.get(text) is not second
