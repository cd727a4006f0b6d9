"""JSON of the fleet's lines: decoded once while it is asked for, and then forgotten."""

from app.store.fleet import DecodedTexts
from tests.api.server import Clock

TEXT = '{"cause": "slow-worker"}'


def texts(clock: Clock, max_texts: int = 10) -> DecodedTexts:
    return DecodedTexts(max_texts=max_texts, fresh_s=60.0, monotonic=clock)


def test_a_text_that_is_asked_for_again_is_decoded_once():
    clock = Clock()
    known = texts(clock)
    first = known.get(TEXT)
    assert first == {"cause": "slow-worker"}
    for _ in range(5):
        clock.now_s += 50.0
        known.forget_unused()
        assert known.get(TEXT) is first
    assert known.get(None) is None


def test_a_text_that_nobody_asks_for_is_forgotten():
    clock = Clock()
    known = texts(clock)
    first = known.get(TEXT)
    for _ in range(2):
        clock.now_s += 61.0
        known.forget_unused()
    assert known.get(TEXT) is not first


def test_more_texts_than_the_limit_are_forgotten_before():
    known = texts(Clock(), max_texts=2)
    first = known.get(TEXT)
    for _ in range(2):
        for number in range(3):
            known.get(str(number))
        known.forget_unused()
    assert known.get(TEXT) is not first
