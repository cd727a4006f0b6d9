"""Offset and drift against dense least squares of the same ends, solved the obvious way."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.clocks import least_squares
from app.engine.clocks.first_guess import first_guess
from app.engine.clocks.least_squares import (
    CLIP,
    LARGE_DRIFT,
    USUAL_JITTER_NS,
    NormalEquations,
    fit_lines,
)
from app.engine.clocks.shared_ends import ClockLines, Sets, SharedEnds, condense

JITTER_NS = 50_000.0


def made(
    num_hosts: int,
    sets: list[list[int]],
    num_times: int,
    *,
    seed: int,
    late: float = 0.0,
    num_after_gap: int = 0,
):
    """Sets of hosts that see the same moments over 60 s, by clocks that are known.

    The last `num_after_gap` of them are 300 s later.
    """
    chance = np.random.default_rng(seed)
    offset_ns = chance.integers(-(10**9), 10**9, num_hosts)
    drift = chance.uniform(-200e-6, 200e-6, num_hosts)
    found = []
    for members in sets:
        ends = []
        true_ns = np.sort(chance.uniform(0, 60e9, num_times))
        true_ns[num_times - num_after_gap :] += 300e9
        for host in members:
            seen_ns = true_ns * (1 + drift[host]) + offset_ns[host]
            seen_ns = seen_ns + chance.normal(0, JITTER_NS, num_times)
            seen_ns += 1e8 * (chance.random(num_times) < late)
            ends.append(np.rint(seen_ns).astype(np.int64))
        found.append(Sets(np.array([members]), np.array([ends]), 1))
    return SharedEnds(num_hosts, tuple(found)), drift


def dense(shared: SharedEnds, start: ClockLines, reference: int, spread_ns: float) -> np.ndarray:
    """[hosts, 2], by weighted least squares again and again (Huber), centres as unknowns too."""
    condensed = condense(shared, start)
    rows, values = [], []
    num_unknowns = 2 * shared.num_hosts + sum(slots.time.size for slots in condensed)
    centre = 2 * shared.num_hosts
    for slots in condensed:
        for slot in range(slots.time.size):
            for member, host in enumerate(slots.host[slots.of_set[slot]]):
                row = np.zeros(num_unknowns)
                row[2 * host], row[2 * host + 1] = 1.0, slots.time[slot]
                row[centre] = 1.0
                rows.append(row)
                values.append(slots.apart_ns[slot, member])
            centre += 1
    prior = np.zeros((shared.num_hosts, num_unknowns))
    weight = USUAL_JITTER_NS / (LARGE_DRIFT * start.half_ns)
    prior[np.arange(shared.num_hosts), 2 * np.arange(shared.num_hosts) + 1] = weight
    matrix, wanted = np.array(rows), np.array(values)
    kept = np.ones(num_unknowns, bool)
    kept[2 * reference : 2 * reference + 2] = False
    weights, found = np.ones(wanted.size), np.zeros(num_unknowns)
    for _ in range(40):
        root = np.sqrt(weights)
        left = np.concatenate([matrix * root[:, None], prior])[:, kept]
        right = np.concatenate([wanted * root, -weight * start.coefficients[:, 1]])
        found[kept] = np.linalg.lstsq(left, right, rcond=None)[0]
        far = np.maximum(np.abs(wanted - matrix @ found), 1e-9)
        weights = np.minimum(1.0, CLIP * spread_ns / far)
    return found[: 2 * shared.num_hosts].reshape(-1, 2)


CHAIN = [[at, at + 1] for at in range(7)]
EVERYBODY = [[0, 1, 2, 3, 4, 5]]
BOTH = [[0, 1], [2, 3], [4, 5], [0, 2, 4], [1, 3, 5], [0, 1, 2, 3, 4, 5]]
ON_ONE_HOST_TWICE = [[0, 0, 1, 2], [1, 2], [2, 2, 0]]


@pytest.mark.parametrize("late", [pytest.param(0.0, marks=pytest.mark.nightly), 0.02])
@pytest.mark.parametrize("sets", [CHAIN, EVERYBODY, BOTH, ON_ONE_HOST_TWICE])
def test_lines_equal_dense_least_squares(sets, late):
    num_hosts = 1 + max(max(members) for members in sets)
    shared, _ = made(num_hosts, sets, 10, seed=3, late=late)
    guess = first_guess(shared)
    found = fit_lines(shared, guess)
    zeros = np.zeros(num_hosts)
    start = ClockLines(
        guess.offset_ns, found.origin_ns, found.middle_ns, found.half_ns,
        np.stack([zeros, guess.drift * found.half_ns], axis=1), zeros, np.inf,
    )  # fmt: skip
    expected = start.coefficients + dense(shared, start, guess.reference[0], found.spread_ns)
    assert found.coefficients == pytest.approx(expected, abs=0.1 * JITTER_NS)


@pytest.mark.parametrize("sets", [CHAIN, EVERYBODY, BOTH, ON_ONE_HOST_TWICE])
def test_drift_is_within_its_stated_error(sets):
    num_hosts = 1 + max(max(members) for members in sets)
    off = []
    for seed in range(20):
        shared, drift = made(num_hosts, sets, 40, seed=seed)
        guess = first_guess(shared)
        found, reference = fit_lines(shared, guess), guess.reference[0]
        relative = (1 + drift) / (1 + drift[reference]) - 1
        others = np.arange(num_hosts) != reference
        off += ((found.drift - relative)[others] / found.drift_error[others]).tolist()
    # About so large: errors of neighbours in a chain add up.
    assert 0.5 < np.sqrt(np.mean(np.square(off))) < 4


@pytest.mark.parametrize("num_after_gap", [1, 2, 7])
@pytest.mark.parametrize("sets", [EVERYBODY * 2, BOTH])
def test_one_line_fits_both_sides_of_a_gap(sets, num_after_gap):
    for seed in range(20):
        shared, drift = made(6, sets, 8, seed=seed, num_after_gap=num_after_gap)
        guess = first_guess(shared)
        found, reference = fit_lines(shared, guess), guess.reference[0]
        relative = (1 + drift) / (1 + drift[reference]) - 1
        # Over 300 s, 1 ppm is 0.3 ms.
        assert np.abs(found.drift - relative).max() < 1e-6


@pytest.mark.parametrize("max_inverted", [0, 6])
def test_normal_equations_are_solved(max_inverted, monkeypatch):
    """By conjugate gradients, and by the inverse."""
    monkeypatch.setattr(least_squares, "_MAX_WRITTEN", max_inverted)
    shared, _ = made(6, BOTH, 5, seed=1)
    start = ClockLines(np.zeros(6, np.int64), 0, 30e9, 30e9, np.zeros((6, 2)), np.zeros(6), np.inf)
    prior, is_free = 0.7, np.arange(6) > 0
    equations = NormalEquations(condense(shared, start), is_free, prior)
    matrix = np.zeros((12, 12))
    sets = [
        (members, each)
        for slots, moments in zip(equations.slots, equations._moments, strict=True)
        for members, each in zip(slots.host.tolist(), moments, strict=True)
    ]
    assert sorted(members for members, _ in sets) == sorted(BOTH)
    for members, (zero, one, two) in sets:
        block = np.array([[zero, one], [one, two]])
        centred = np.eye(len(members)) - 1 / len(members)
        for at, host in enumerate(members):
            for other_at, other in enumerate(members):
                place = np.ix_([2 * host, 2 * host + 1], [2 * other, 2 * other + 1])
                matrix[place] += centred[at, other_at] * block
    matrix[1::2, 1::2] += prior * np.eye(6)
    pull = np.random.default_rng(0).normal(size=(6, 2))
    assert equations.diagonal.ravel() == pytest.approx(np.diag(matrix))
    found, total = np.zeros((6, 2)), np.zeros((6, 2))
    for _ in range(30):  # each time it stops at a share of what it was asked for
        asked = pull - (matrix @ total.ravel()).reshape(6, 2)
        found = equations.solved(asked, 1e-9)
        total += found
    expected = np.linalg.solve(matrix[2:, 2:], pull.ravel()[2:])
    assert total.ravel()[2:] == pytest.approx(expected, rel=1e-6)
    assert total[0].tolist() == [0.0, 0.0]


def test_a_clock_with_a_bad_first_guess_is_corrected():
    """As where most of the ends that the guess was made by were late."""
    shared, _ = made(6, BOTH, 16, seed=4)
    guess = first_guess(shared)
    wrong = (np.arange(6) == 4) & (guess.reference != 4)
    assert wrong.any()
    worse = replace(
        guess, offset_ns=guess.offset_ns + 200_000_000 * wrong, drift=guess.drift + 0.01 * wrong
    )
    right, found = fit_lines(shared, guess), fit_lines(shared, worse)
    at_middle = found.offset_ns + found.coefficients[:, 0]
    assert at_middle == pytest.approx(right.offset_ns + right.coefficients[:, 0], abs=JITTER_NS)
    assert found.drift == pytest.approx(right.drift, abs=5e-6)


def test_a_constant_added_to_a_clock_is_found_exactly():
    shared, _ = made(8, CHAIN, 9, seed=2, late=0.05)
    more_ns = np.random.default_rng(1).integers(-(10**13), 10**13, 8)
    ahead = replace(
        shared,
        of_shape=tuple(
            replace(sets, end_ns=sets.end_ns + more_ns[sets.host][..., None])
            for sets in shared.of_shape
        ),
    )
    before, after = first_guess(shared), first_guess(ahead)
    assert (after.drift == before.drift).all()
    reference = before.reference[0]
    assert (after.offset_ns - before.offset_ns == more_ns - more_ns[reference]).all()
    assert (fit_lines(ahead, after).coefficients == fit_lines(shared, before).coefficients).all()
