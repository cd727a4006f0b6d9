"""When, by whom and how often it is said that the server does not answer."""

import pytest
from paceline_client.recording.wire import Worker
from paceline_client.sending.contact import SAY_AFTER_S, SPEAK_LATE_S, FirstContact


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def contact(clock, rank=0, local_rank=None):
    worker = Worker(rank, rank, 0, "n", local_rank=local_rank)
    return FirstContact("http://s:1", worker, clock)


def fail(contact, clock, *, seconds, number=2):
    for _ in range(number):
        contact.trying()
        clock.now_s += seconds / number
        contact.failed("refused")


def test_rank_0_warns_once_within_seconds_and_says_what_to_do(clock, caplog):
    first = contact(clock)
    fail(first, clock, seconds=SAY_AFTER_S)
    fail(first, clock, seconds=600, number=9)
    [record] = caplog.records
    for words in ("http://s:1", "refused", "Training goes on", "PACELINE_URL", "paceline_client"):
        assert words in record.getMessage()


def test_a_frozen_server_is_told_after_the_first_attempt(clock, caplog):
    fail(contact(clock), clock, seconds=SAY_AFTER_S, number=1)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("local_rank", "warns"), [(None, True), (0, True), (1, False)])
def test_another_rank_warns_late_and_only_the_first_of_its_host(clock, caplog, local_rank, warns):
    other = contact(clock, rank=8, local_rank=local_rank)
    fail(other, clock, seconds=SPEAK_LATE_S - 1, number=5)
    assert not caplog.records
    fail(other, clock, seconds=2)
    assert len(caplog.records) == warns


def test_a_server_that_only_answers_to_try_again_is_told_late(clock, caplog):
    first = contact(clock)
    for _ in range(10):
        first.trying()
        clock.now_s += SPEAK_LATE_S / 10 - 0.1
        first.failed("429: too many", is_answer=True)
    assert not caplog.records
    clock.now_s += 2
    first.failed("503: the disk is full", is_answer=True)
    [record] = caplog.records
    assert "503: the disk is full" in record.getMessage()


def test_a_short_training_is_told_at_its_end(clock, caplog):
    short = contact(clock)
    fail(short, clock, seconds=0.1, number=1)
    assert not caplog.records
    short.ended()
    assert len(caplog.records) == 1


def test_each_outage_is_told_with_its_end(clock, caplog):
    first = contact(clock)
    for _ in range(2):
        fail(first, clock, seconds=SAY_AFTER_S)
        first.succeeded()
    assert ["again" in record.getMessage() for record in caplog.records] == [False, True] * 2
