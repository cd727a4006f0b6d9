"""How a job has ended by the reports of its ranks, by hand-made reports."""

from dataclasses import replace
from typing import Any

import pytest

from app.trace.exits import RankExit, end_sentence, judge


def rank_exit(rank, outcome="finished", at_s=0.0, **about):
    return RankExit(rank, rank, 0, f"n{rank}", outcome, 100.0 + at_s, **about)


FINISHED = [rank_exit(rank) for rank in range(3)]
OWN = rank_exit(1, "failed", 2.0, error_type="torch.OutOfMemoryError", message="CUDA out of memory")
PEER = rank_exit(0, "failed", 1.0, error_type="RuntimeError", message="Connection closed by peer")
KILLED = rank_exit(2, "killed", 3.0)
UNCLEAR = rank_exit(2, "ended", 3.0)
UNCLEAR_FIRST = rank_exit(0, "ended", -1.0)
TERMINATED = [rank_exit(rank, "terminated", rank, signal=15) for rank in range(3)]


def verdict(exits, *, is_quiet=False, seen=()):
    end = judge(exits, 3, is_quiet=is_quiet, seen=seen)
    return end and (end.ended_as, end.cause and end.cause.rank)


def end_of(exits, num_workers=3, *, is_quiet=True, seen=()) -> Any:
    """As `judge`, where it must have found an end."""
    end = judge(exits, num_workers, is_quiet=is_quiet, seen=seen)
    assert end is not None
    return end


def test_a_job_has_finished_once_all_workers_have_in_any_order():
    assert verdict(FINISHED[:2]) is None
    assert verdict(FINISHED) == verdict(FINISHED[::-1]) == ("finished", None)


def test_a_rank_that_says_nothing_is_not_waited_for_where_nothing_comes():
    assert verdict(FINISHED[:2], is_quiet=True) == ("finished", None)
    assert verdict([], is_quiet=True) is None


@pytest.mark.parametrize(
    ("exits", "cause"),
    [
        ([PEER, OWN, KILLED], 1),  # the exception that blames no peer, though it came later
        ([PEER, TERMINATED[1], KILLED], 2),
        ([PEER, replace(PEER, rank=1, dp_rank=1), TERMINATED[2]], 0),
        ([TERMINATED[0], OWN, TERMINATED[2]], 1),
    ],
)
def test_the_cause_of_a_crash_is_no_rank_that_fell_over_another(exits, cause):
    assert verdict(exits) == ("crashed", cause)


@pytest.mark.parametrize(
    ("exits", "found"),
    [
        ([*FINISHED[:2], UNCLEAR], ("finished", None)),
        ([UNCLEAR], ("crashed", 2)),
        ([UNCLEAR_FIRST, UNCLEAR], ("crashed", 0)),
        ([PEER, TERMINATED[1], UNCLEAR], ("crashed", 2)),  # they fell over it
        ([UNCLEAR_FIRST, TERMINATED[1], TERMINATED[2]], ("crashed", 0)),
        ([TERMINATED[0], TERMINATED[1], UNCLEAR], ("preempted", 0)),
        ([OWN, UNCLEAR], ("crashed", 1)),
        ([KILLED, UNCLEAR_FIRST], ("crashed", 2)),
    ],
)
def test_a_rank_of_which_nobody_knows_how_it_ended_is_judged_by_the_others(exits, found):
    assert verdict(exits, is_quiet=True) == found


def test_a_worker_that_sent_data_and_said_nothing_was_lost():
    seen = [((rank, 0), f"n{rank}") for rank in range(3)]
    end = end_of(TERMINATED[:2], seen=seen)
    assert (end.ended_as, end.is_lost, end.cause.worker) == ("crashed", True, (2, 0))
    assert end_sentence(end.end_cause) == (
        "n2 (dp 2, stage 0) was lost without a word, and the other ranks ended after it"
    )
    # Also without data, where the others' exceptions speak of a peer that is gone.
    found = end_of([PEER, replace(PEER, rank=1, dp_rank=1)])
    assert (found.is_lost, found.cause.worker, found.cause.host) == (True, (2, 0), None)
    # One that never sent anything may not be recorded at all.
    assert verdict(TERMINATED[:2], is_quiet=True, seen=seen[:2]) == ("preempted", 0)


def test_a_job_whose_ranks_were_all_asked_to_end_was_preempted_from_the_first_on():
    end = end_of(TERMINATED, is_quiet=False)
    assert (end.ended_as, end.at_s, end.num_reported) == ("preempted", 100.0, 3)
    # Peers that fall over the first one, before their own signal comes.
    end = end_of([TERMINATED[0], replace(PEER, rank=1, dp_rank=1), TERMINATED[2]], is_quiet=False)
    assert (end.ended_as, end.cause.rank, end.num_reported) == ("preempted", 0, 2)


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (OWN, "n1, rank 1 (dp 1, stage 0) raised torch.OutOfMemoryError: CUDA out of memory"),
        (
            rank_exit(1, "failed", error_type="E", message="a\n\t<b>\u202e" + 300 * "x"),
            "n1, rank 1 (dp 1, stage 0) raised E: a <b> " + 153 * "x" + "\u2026",
        ),
        (rank_exit(1, "failed", exit_code=3), "n1, rank 1 (dp 1, stage 0) exited with status 3"),
        (
            rank_exit(1, "killed", signal=9),
            "n1, rank 1 (dp 1, stage 0) was killed by SIGKILL (perhaps out of memory)",
        ),
        (
            KILLED,
            "n2, rank 2 (dp 2, stage 0) ended without a word: killed, out of memory, by an "
            "error in native code, or by os._exit",
        ),
    ],
)
def test_sentence_names_who_and_what(cause, sentence):
    found = end_of([cause], 1)
    plain = end_sentence(found.end_cause).translate({0x2068: None, 0x2069: None})
    assert plain == sentence


def test_preemption_in_words():
    assert end_sentence(end_of(TERMINATED).end_cause) == (
        "3 ranks got SIGTERM, as by preemption, a time limit or a cancelled job"
    )
