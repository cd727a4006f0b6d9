"""Worked cases: who was late, what the others waited, and who is to blame."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.engine.arrivals.arrivals import Arrivals, arrivals_of_table
from app.trace.collectives import RankGroup
from tests.engine.arrivals.random_tables import groups_of, random_rows, table_of
from tests.engine.arrivals.reference import Row

FOUR = RankGroup("tp", "tp", (0, 1, 2, 3))


def one_occurrence(*stay_ms: float) -> Arrivals:
    group = RankGroup("tp", "tp", tuple(range(len(stay_ms))))
    rows = [Row(0, 0, 0, 0, rank, 0.0, stay * 1e-3) for rank, stay in enumerate(stay_ms)]
    found = arrivals_of_table(table_of(rows, (group,)), (0,), np.array([0.1]))
    assert found is not None
    return found


def late_ranks(found: Arrivals) -> list[int]:
    return np.flatnonzero(found.lateness.is_late).tolist()


def ms(values: np.ndarray) -> object:
    return pytest.approx(1e3 * values)


class TestOneOccurrence:
    def test_the_shortest_stay_of_four_is_late(self):
        found = one_occurrence(11.0, 1.0, 10.5, 10.0)
        assert late_ranks(found) == [1]
        # The others waited until the last came, at least 10 - 1 ms.
        assert ms(found.lateness.late_wait_s) == [9.0]
        assert ms(found.waited_s[:, 0]) == [10.0, 0.0, 9.5, 9.0]
        assert ms(found.waited_for_s[:, 0]) == [0.0, 9.0, 0.0, 0.0]
        assert ms(found.lateness.transfer_s) == [1.0]

    def test_two_ranks_that_arrive_late_together_are_both_late(self):
        found = one_occurrence(10.0, 1.2, 10.1, 1.0)
        assert late_ranks(found) == [1, 3]
        assert ms(found.lateness.late_wait_s) == [9.0]
        # The cost is joint: each carries the whole.
        assert ms(found.waited_for_s[:, 0]) == [0.0, 9.0, 0.0, 9.0]

    def test_three_of_four_are_never_late(self):
        # The widest gap is above three of them: they are the rule, not the exception.
        assert late_ranks(one_occurrence(1.0, 1.0, 10.0, 1.0)) == []

    def test_one_of_three_is_late_only_at_a_material_gap(self):
        assert late_ranks(one_occurrence(1.0, 2.0, 4.9)) == [0]
        assert late_ranks(one_occurrence(1.0, 2.0, 5.1)) == []

    def test_ends_a_few_microseconds_apart_make_no_rank_late(self):
        assert late_ranks(one_occurrence(1.000, 1.009)) == []
        assert late_ranks(one_occurrence(1.000, 1.011)) == [0]

    def test_equal_stays_make_no_rank_late(self):
        assert late_ranks(one_occurrence(1.0, 1.0, 1.0, 1.0)) == []

    def test_the_widest_gap_decides_between_two_late_sets(self):
        assert late_ranks(one_occurrence(0.0, 1.0, 9.0, 9.0, 9.1)) == [0, 1]
        assert late_ranks(one_occurrence(0.0, 8.0, 9.0, 9.0, 9.1)) == [0]

    def test_incomplete_occurrences_do_not_count(self):
        rows = [Row(0, 0, 0, 0, rank, 0.0, 1e-3) for rank in range(3)]
        assert arrivals_of_table(table_of(rows, (FOUR,)), (0,), np.array([0.1])) is None


def run(
    groups: Sequence[RankGroup],
    computing_ms: Mapping[tuple[int, int], float],
    order: Sequence[int],
    *,
    num_steps: int = 8,
) -> list[Row]:
    """Each step goes through the groups in `order`; before each its members compute.

    `computing_ms` has what a rank takes before a position of `order` where that is not 10 ms.
    """
    ranks = {rank for group in groups for rank in group.ranks}
    clock = dict.fromkeys(ranks, 0.0)
    rows = []
    for step in range(num_steps):
        sequence = dict.fromkeys(range(len(groups)), 0)
        for at, number in enumerate(order):
            members = groups[number].ranks
            for rank in members:
                clock[rank] += 1e-3 * computing_ms.get((rank, at), 10.0)
            end = max(clock[rank] for rank in members) + 1e-3
            for rank in members:
                stay = end - clock[rank]
                rows.append(Row(number, 0, step, sequence[number], rank, clock[rank], stay))
                clock[rank] = end
            sequence[number] += 1
    return rows


def judged(rows: Sequence[Row], groups: Sequence[RankGroup], step_s: float = 0.1) -> Arrivals:
    steps = sorted({row.step for row in rows})
    found = arrivals_of_table(table_of(rows, tuple(groups)), steps, np.full(len(steps), step_s))
    assert found is not None
    return found


def culprits(found: Arrivals) -> set[int]:
    return {found.places[each.place].rank for each in found.culprits}


class TestBlame:
    def test_a_slower_rank_is_the_culprit_and_the_difference_is_its_own_delay(self):
        found = judged(run([FOUR], {(2, 0): 15.0, (2, 1): 15.0}, [0, 0]), [FOUR])
        (late,) = found.late
        assert culprits(found) == {2}
        assert late.waited_for_s == pytest.approx(10e-3)
        # Nothing is known of what came before the first occurrence: the other 15 stand for it.
        assert late.own_delay_s == pytest.approx(10e-3)
        assert late.late_share == late.steps_late == 1.0

    def test_a_rank_that_is_late_in_three_steps_of_eight_is_no_culprit(self):
        slow = run([FOUR], {(2, 0): 25.0}, [0], num_steps=3)
        rest = run([FOUR], {}, [0], num_steps=8)
        rows = [*slow, *(replace(row, start=row.start + 1.0) for row in rest if row.step > 2)]
        found = judged(rows, [FOUR])
        assert [each.is_chronic for each in found.late] in ([], [False])
        assert culprits(found) == set()

    def test_a_rank_held_up_in_another_group_is_no_culprit(self):
        # Rank 0 is slow and meets 2 and 4 (across) before rank 2 meets 3 (inside).
        groups = [
            RankGroup("tp0", "tp", (0, 1)),
            RankGroup("tp1", "tp", (2, 3)),
            RankGroup("tp2", "tp", (4, 5)),
            RankGroup("dp", "dp", (0, 2, 4)),
        ]
        # Odd ranks compute alone what the others do in two parts and the collective between.
        apart = {(1, 1): 21.0, (3, 2): 21.0, (5, 3): 21.0}
        found = judged(run(groups, {(0, 0): 30.0, **apart}, [3, 0, 1, 2]), groups)
        assert culprits(found) == {0}
        late = {found.places[each.place].rank: each for each in found.late}
        # The three had waited for rank 0, so that 2 and 4 came late to their peers.
        assert {2, 4} <= set(late)
        for rank in (2, 4):
            assert late[rank].waited_for_s == pytest.approx(20e-3)
            assert late[rank].own_delay_s == pytest.approx(0.0, abs=1e-6)

    def test_a_later_stage_waiting_for_its_receives_is_no_culprit(self):
        # Stage 0 (ranks 0, 1) sends to stage 1 (ranks 2, 3); rank 0 is slow, so 2 starts late.
        stages = [RankGroup("dp, stage 0", "dp", (0, 1)), RankGroup("dp, stage 1", "dp", (2, 3))]
        rows = run(stages, {(0, 0): 40.0, (2, 1): 40.0}, [0, 1], num_steps=10)
        steps = range(10)
        found = arrivals_of_table(table_of(rows, tuple(stages)), steps, np.full(10, 0.1))
        assert found is not None
        assert culprits(found) == {0, 2}  # nothing tells that rank 2 received
        mine = [row for row in rows if row.rank == 2]
        received = (
            np.array([row.start - 40e-3 for row in mine]),
            np.array([row.start - 10e-3 for row in mine]),
        )
        found = arrivals_of_table(
            table_of(rows, tuple(stages)), steps, np.full(10, 0.1), {2: received}
        )
        assert found is not None
        assert culprits(found) == {0}

    def test_late_ranks_of_one_host_are_late_together(self):
        group = RankGroup("dp", "dp", tuple(range(17)))
        slow = {(rank, 0): 14.0 for rank in range(8)}
        found = judged(run([group], slow, [0]), [group])
        assert culprits(found) == set(range(8))

    def test_waits_below_1_percent_of_the_step_are_ignored(self):
        found = judged(run([FOUR], {(2, 0): 10.9}, [0]), [FOUR], step_s=0.1)
        assert found.late == ()


def test_waits_of_a_rank_in_two_groups_are_the_maximum_not_the_sum():
    groups = groups_of(2, 2)
    found = judged(run(groups, {(1, at): 20.0 for at in range(4)}, [0, 1, 2, 3]), groups)
    rank = [each.rank for each in found.places].index(1)
    of_groups = found.lateness.waited_for_s[found.occurrences.member_rank == rank]
    assert found.waited_for_s[rank].tolist() == pytest.approx(of_groups.max(axis=0).tolist())


@pytest.mark.parametrize("seed", range(12))
def test_clock_offsets_do_not_change_arrivals(seed: int):
    """Each rank's clock may be wrong by any constant."""
    chance = random.Random(seed)
    groups, steps = groups_of(4, 4), range(8)
    rows = random_rows(chance, groups, steps)
    wrong = {rank: chance.randrange(-(1 << 20), 1 << 20) * 2.0**-16 for rank in range(16)}
    moved = [replace(row, start=row.start + wrong[row.rank]) for row in rows]
    step_s = np.full(8, 0.05)
    found = arrivals_of_table(table_of(rows, groups), steps, step_s)
    other = arrivals_of_table(table_of(moved, groups), steps, step_s)
    assert found is not None
    assert other is not None
    assert np.array_equal(found.waited_for_s, other.waited_for_s)
    assert np.array_equal(found.waited_s, other.waited_s)
    assert len(found.late) == len(other.late)
    for mine, theirs in zip(found.late, other.late, strict=True):
        assert (mine.place, mine.group, mine.is_culprit) == (
            theirs.place,
            theirs.group,
            theirs.is_culprit,
        )
        assert mine.own_delay_s == pytest.approx(theirs.own_delay_s)
