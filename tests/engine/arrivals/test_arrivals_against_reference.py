"""The engine's arrivals against the page's definitions, done the slow way."""

import random
from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError

import numpy as np
import pytest
from hypothesis import given, reject

from app.engine.arrivals.arrivals import Arrivals, arrivals_of_replay, arrivals_of_table
from app.engine.replays import prepare
from app.trace.ops import Axis, OpKind
from app.trace.window import Window
from tests.engine.arrivals.random_tables import LAYOUTS, groups_of, random_rows, table_of
from tests.engine.arrivals.reference import Result, Row, arrivals
from tests.example_counts import many
from tests.job_strategies import STRUCTURES, Structure, changing, made, seeds
from tests.reference import Reference
from tests.reference_ops import Key, Op, in_recorded_order
from tests.window_factory import with_columns

pytestmark = pytest.mark.oracle

ALL = pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
Where = tuple[str, tuple[int, ...]]


def approx(values: object) -> object:
    return values if values is None else pytest.approx(values, rel=1e-9, abs=1e-12)


def assert_agrees(got: Arrivals | None, want: Result, groups: Sequence[Where]) -> None:
    """Every sum, every late rank and every figure of it; `groups` names the reference's."""
    if got is None:
        assert not want.occurrences
        return
    found, late = got.occurrences, got.lateness
    assert found.num_occurrences == len(want.occurrences)
    number: dict[Where, int] = {
        (group.axis, group.ranks): at for at, group in enumerate(found.groups)
    }
    for (group, rank), of_member in want.by_member.items():
        at = number[groups[group]]
        mine = int(found.first_member[at]) + found.groups[at].ranks.index(rank)
        assert late.waited_s[mine].tolist() == approx(of_member.waited)
        assert late.waited_for_s[mine].tolist() == approx(of_member.waited_for)
        assert late.late[mine].sum() == of_member.times_late
        assert late.expected[at].sum() == approx(of_member.expected)
        assert late.num_occurrences[at].sum() == of_member.num
    for group, lost in want.lost.items():
        assert late.lost_s[number[groups[group]]].tolist() == approx(lost)
    theirs = {found.places[each.place].rank: each for each in got.late}
    assert set(theirs) == set(want.suspects)
    for rank, suspect in want.suspects.items():
        each = theirs[rank]
        assert each.waited_for_s == approx(suspect.waited_for)
        assert each.own_delay_s == approx(suspect.own_delay)
        assert each.steps_late == approx(suspect.steps_late)
        assert each.is_culprit == suspect.is_culprit
    assert {found.places[each.place].rank for each in got.culprits} == want.culprits


def assert_table_agrees(seed: int, *, with_starts: bool, is_continuous: bool) -> Result:
    chance = random.Random(seed)
    groups = groups_of(*chance.choice(LAYOUTS), chance.choice(["tp", "ep", "ep", "tp", "pp"]))
    steps = chance.choice([(5,), (0, 1, 2, 3), (3, 4, 9, 10, 11, 20), tuple(range(10, 26))])
    rows = random_rows(chance, groups, steps, with_starts=with_starts, is_continuous=is_continuous)
    step_s = [chance.choice([0.02, 0.05, 0.4]) for _ in steps]
    receives = {0: [(0.001, 0.02), (0.01, 0.03), (0.7, 0.8)]} if is_continuous else {}
    want = arrivals(
        rows,
        [group.ranks for group in groups],
        [group.axis for group in groups],
        steps,
        step_s,
        receives,
        is_continuous=is_continuous,
    )
    table = table_of(rows, groups, is_continuous=is_continuous)
    intervals = {
        rank: (np.array([start for start, _ in each]), np.array([end for _, end in each]))
        for rank, each in receives.items()
    }
    got = arrivals_of_table(table, steps, np.array(step_s), intervals)
    assert_agrees(got, want, [(group.axis, group.ranks) for group in groups])
    return want


@many(100)
@given(seed=seeds)
def test_a_table_of_one_origin_equals_the_reference(seed: int):
    assert_table_agrees(seed, with_starts=True, is_continuous=True)


@many(60)
@given(seed=seeds)
def test_a_table_with_an_origin_per_step_equals_the_reference(seed: int):
    assert_table_agrees(seed, with_starts=True, is_continuous=False)


@many(60)
@given(seed=seeds)
def test_a_table_without_starts_equals_the_reference(seed: int):
    assert_table_agrees(seed, with_starts=False, is_continuous=True)


@pytest.mark.parametrize("number", [16, pytest.param(80, marks=pytest.mark.nightly)])
def test_the_random_tables_have_culprits_and_held_up_ranks(number: int):
    results = [
        assert_table_agrees(seed, with_starts=True, is_continuous=True) for seed in range(number)
    ]
    assert sum(bool(each.culprits) for each in results) > number / 4
    assert sum(bool(set(each.suspects) - each.culprits) for each in results) > number / 4


def rows_of(window: Window) -> tuple[list[Row], list[Where]]:
    """Operations that meet others in a collective, and the axis and ranks of each group."""
    rows: list[Row] = []
    groups: list[Where] = []
    for part in Reference(window).groups:
        for step in part.steps:
            sequence = 0
            for nodes in part.meetings:
                ops = [part.op[step, *node] for node in nodes]
                if len(ops) < 2 or ops[0].spec.kind is not OpKind.COLLECTIVE:
                    continue
                where = axis_of(ops), tuple(op.rank for op in sorted(ops, key=place))
                if where not in groups:
                    groups.append(where)
                number = groups.index(where)
                rows += [
                    Row(number, 0, step, sequence, op.rank, op.start_s, op.duration_s) for op in ops
                ]
                sequence += 1
    return rows, groups


def place(op: Op) -> tuple[int, int]:
    return op.worker


def axis_of(ops: list[Op]) -> str:
    if len({op.key.stage for op in ops}) > 1:
        return "pp"
    return "ep" if ops[0].spec.axis is Axis.EP else "dp"


def waits_for_receives(window: Window, start_of: dict[int, float]) -> dict:
    """Of each receive all but the shortest of its type on its stage, by rank."""
    types = window.job.op_types
    receiving = {spec.pairs_with for spec in types.user} | {"forward-recv", "backward-recv"}
    ops = [op for part in Reference(window).groups for op in part.ops if op.optype in receiving]
    shortest: dict[tuple[str, int], float] = {}
    for op in ops:
        key = op.optype, op.key.stage
        shortest[key] = min(shortest.get(key, op.duration_s), op.duration_s)
    found: dict[int, list[tuple[float, float]]] = {}
    for op in ops:
        start = op.start_s + start_of[op.step]
        end = start + op.duration_s - shortest[op.optype, op.key.stage]
        found.setdefault(op.rank, []).append((start, end))
    return found


def first_operations(window: Window, start_of: dict[int, float]) -> dict[tuple[int, int], float]:
    """Start of each worker's first operation, in recorded order, by rank and step."""
    found = {}
    for part in Reference(window).groups:
        first = [op for op in part.ops if (op.dp_rank, op.step) == (0, part.steps[0])]
        keys: dict[int, Key] = {}
        for op in in_recorded_order(first):
            keys.setdefault(op.key.stage, op.key)
        for op in part.ops:
            if op.key == keys[op.key.stage]:
                found[op.rank, op.step] = op.start_s + start_of[op.step]
    return found


def with_late_ranks(window: Window, seed: int) -> Window:
    """One rank or two start their transfers late, and so stay in them only shortly."""
    chance = random.Random(seed)
    trace, types = window.trace, window.job.op_types
    ranks = np.unique(trace.rank).tolist()
    late = chance.sample(ranks, min(len(ranks), chance.choice([1, 1, 2])))
    code_is_transfer = types.flags(lambda spec: spec.kind is OpKind.COLLECTIVE)
    rows = np.isin(trace.rank, late) & code_is_transfer[trace.optype]
    shift_s = np.where(rows, trace.duration_s * chance.choice([0.5, 0.9]), 0.0)
    return with_columns(
        window, start_s=trace.start_s + shift_s, duration_s=trace.duration_s - shift_s
    )


def assert_window_agrees(window: Window, *, is_continuous: bool) -> Result:
    try:
        reference = Reference(window)
    except CycleError:  # ranks that start late may have changed an order
        assert any("in a circle" in skip.reason for skip in prepare(window).skipped)
        reject()
    steps = reference.steps
    rows, groups = rows_of(window)
    # Steps in a row, each long after the one before, or with origins that tell where each began.
    start_of = {step: 1000.0 * at for at, step in enumerate(window.steps)}
    if is_continuous:
        start_of = {step: 3.0 * at for at, step in enumerate(window.steps)}
        origin_ns = tuple(int(start_of[step] * 1e9) for step in window.steps)
        window = replace(window, origin_ns=origin_ns)
    rows = [replace(row, start=row.start + start_of[row.step]) for row in rows]
    replay = prepare(window)
    step_s = replay.recorded_s
    want = arrivals(
        rows,
        [ranks for _, ranks in groups],
        [axis for axis, _ in groups],
        steps,
        step_s.tolist(),
        waits_for_receives(window, start_of),
        is_continuous=is_continuous,
        began=first_operations(window, start_of),
    )
    firsts = [(at.group, at.step, at.start[groups[at.group][1][0]]) for at in want.occurrences]
    if len(set(firsts)) < len(firsts):  # of two that begin together, neither is the earlier one
        return want
    assert_agrees(arrivals_of_replay(replay, step_s), want, groups)
    return want


@ALL
@many(25)
@given(seed=seeds)
def test_a_replayed_window_equals_the_reference(structure: Structure, seed: int):
    window = made(structure, seed, num_steps=1 + seed % 4)
    assert_window_agrees(window, is_continuous=seed % 2 == 0)


@ALL
@many(25)
@given(seed=seeds)
def test_a_replayed_window_with_late_ranks_equals_the_reference(structure: Structure, seed: int):
    window = with_late_ranks(made(structure, seed, num_steps=3 + seed % 8), seed)
    assert_window_agrees(window, is_continuous=seed % 2 == 0)


@pytest.mark.nightly
def test_the_random_windows_have_culprits_and_held_up_ranks():
    results = []
    for structure in STRUCTURES.values():
        for seed in range(8):
            window = with_late_ranks(made(structure, seed, num_steps=9), seed)
            results.append(assert_window_agrees(window, is_continuous=seed % 2 == 0))
    assert sum(bool(each.culprits) for each in results) > 5
    assert sum(bool(set(each.suspects) - each.culprits) for each in results) > 1


@ALL
@many(10)
@given(seed=seeds)
def test_a_window_of_two_structures_equals_the_reference(structure: Structure, seed: int):
    window = with_late_ranks(changing(structure, seed), seed)
    assert_window_agrees(window, is_continuous=seed % 2 == 0)
