"""Answers that are dear to make are kept for as much longer."""

import threading

from app.api.kept import MOST_KEPT, TIMES_AS_LONG, Kept
from tests.api.server import Clock


class Maker:
    """Takes some time for each answer, and counts them."""

    def __init__(self, clock, took_s):
        self.clock, self.took_s, self.number = clock, took_s, 0

    def __call__(self):
        self.clock.now_s += self.took_s
        self.number += 1
        return self.number


def test_an_answer_is_kept_for_so_many_times_as_long_as_it_took():
    clock = Clock()
    kept, make = Kept(clock), Maker(clock, 0.5)
    assert kept.get("a", make) == 1
    clock.now_s += 0.5 * TIMES_AS_LONG - 0.1
    assert kept.get("a", make) == 1
    clock.now_s += 0.2
    assert kept.get("a", make) == 2


def test_what_costs_nothing_is_made_anew():
    clock = Clock()
    kept, make = Kept(clock), Maker(clock, 0.0)
    assert [kept.get("a", make), kept.get("a", make)] == [1, 2]


def test_none_is_an_answer_and_each_question_has_its_own():
    clock = Clock()
    kept, make = Kept(clock), Maker(clock, 1.0)

    def nothing():
        make()

    assert (kept.get("none", nothing), kept.get("none", nothing)) == (None, None)
    assert make.number == 1
    assert kept.get("other", make) == 2


def test_only_the_newest_answers_are_kept():
    clock = Clock()
    kept, make = Kept(clock), Maker(clock, 1e6)
    for number in range(MOST_KEPT + 1):
        kept.get(number, make)
    made = make.number
    kept.get(MOST_KEPT, make)
    assert make.number == made
    kept.get(0, make)
    assert make.number == made + 1


def test_who_asks_while_it_is_made_waits_for_that_answer():
    clock = Clock()
    kept, make = Kept(clock), Maker(clock, 1.0)
    got = []
    second = threading.Thread(target=lambda: got.append(kept.get("a", make)))

    def slow():
        second.start()
        second.join(0.2)
        assert second.is_alive()
        return make()

    assert kept.get("a", slow) == 1
    second.join()
    assert got == [1]
