"""What changed in a job's steps: when, by how much, and who changed?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.diagnosis.course import Course
from app.diagnosis.finding import Culprit
from app.diagnosis.grouping import Hosts, culprits
from app.diagnosis.onset import Change, changes, changes_of_each
from app.diagnosis.per_work import per_work
from app.diagnosis.splits import USUAL
from app.trace.job import Parallelism
from app.trace.window import Floats

# The newest ones of a job whose figures go up and down all the time.
MOST_CHANGES = 32
# Of large jobs the workers that vary most; a series takes up to a millisecond.
MOST_WORKERS = 128
# Step time is that of the worst worker: a single odd operation makes it so much longer, and
# several odd steps may come together. It has changed where it has for so long.
LASTING = USUAL._replace(before=8, after=8)
# Changes of workers this many steps apart are one that they share.
TOGETHER = 2
# Positions before which a fall is the end of the job's first steps.
WARM_UP = 5
# Whether others have changed, too, is judged by so many steps on either side.
NEAR = 8
# So many workers are everybody.
NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class Happening:
    """Step time ("step-time"), or some workers' computations ("compute"), from `step` on.

    Gradually until `until_step`, or at once where that is the same. Seconds are of a step, or of
    the mean computation of those workers; no culprits are everybody.
    """

    step: int
    until_step: int
    what: str
    before_s: float
    after_s: float
    culprits: tuple[Culprit, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As results carry it; a ratio below 1 is a recovery."""
        return {
            "step": self.step,
            "until_step": self.until_step,
            "what": self.what,
            "before_s": self.before_s,
            "after_s": self.after_s,
            "ratio": self.after_s / self.before_s,
            "culprits": [culprit.as_json() for culprit in self.culprits],
        }


def happenings(course: Course, hosts: Hosts, parallelism: Parallelism) -> tuple[Happening, ...]:
    """All changes that are known of, in the order of their steps."""
    found = [*_of_steps(course), *_of_workers(course, hosts, parallelism)]
    return tuple(sorted(found, key=lambda each: (each.step, each.what))[-MOST_CHANGES:])


def _of_steps(course: Course) -> Iterator[Happening]:
    for change in changes(course.step_s, LASTING):
        yield _happening(course, "step-time", change, change.before, change.ratio)


def _of_workers(course: Course, hosts: Hosts, sizes: Parallelism) -> Iterator[Happening]:
    compute_s = per_work(course)
    if compute_s is None:
        return
    of_worker = compute_s.reshape(course.num_steps, -1).T
    chosen = _most_varying(of_worker)
    found = [
        (change, int(worker))
        for worker, series in zip(chosen, changes_of_each(of_worker[chosen]), strict=True)
        for change in series
        if not _ends_warm_up(change)
    ]
    for shared in _together(found):
        typical = min(shared, key=lambda each: abs(each[0].ratio - _ratio(shared)))[0]
        hit = {worker for _, worker in shared}
        if chosen.size < len(of_worker):
            hit |= _followers(of_worker, typical, _ratio(shared))
        workers = [divmod(worker, sizes.pp_size) for worker in sorted(hit)]
        before_s = float(np.mean([change.before for change, _ in shared]))
        is_all = len(hit) >= NEARLY_ALL * len(of_worker)
        to_blame = () if is_all else culprits(workers, hosts, sizes)
        yield _happening(course, "compute", typical, before_s, _ratio(shared), to_blame)


def _ends_warm_up(change: Change) -> bool:
    """Whether it is a fall right after the first steps that are known of the job's epoch.

    These warm up, and a chance step beside them makes four: no level that anything fell from.
    """
    return change.ratio < 1 and change.position <= WARM_UP


def _most_varying(of_worker: Floats) -> np.ndarray:
    """The workers to look at, of series [workers, n]."""
    if len(of_worker) <= MOST_WORKERS:
        return np.arange(len(of_worker))
    known = of_worker[:, np.isfinite(of_worker).all(axis=0)]
    if not known.shape[1]:
        return np.arange(MOST_WORKERS)
    varies = known.std(axis=1) / known.mean(axis=1)
    return np.argsort(-varies, kind="stable")[:MOST_WORKERS]


def _together(found: list[tuple[Change, int]]) -> Iterator[list[tuple[Change, int]]]:
    """Changes in one direction at about the same step."""
    for is_up in (True, False):
        shared: list[tuple[Change, int]] = []
        of_one_way = [each for each in found if (each[0].ratio > 1) == is_up]
        for each in sorted(of_one_way, key=lambda each: each[0].position):
            if shared and each[0].position - shared[0][0].position > TOGETHER:
                yield shared
                shared = []
            shared.append(each)
        if shared:
            yield shared


def _ratio(shared: list[tuple[Change, int]]) -> float:
    return float(np.median([change.ratio for change, _ in shared]))


def _followers(of_worker: Floats, change: Change, ratio: float) -> set[int]:
    """The workers that went at least half of the way at the same time."""
    first, end = max(0, change.position - NEAR), change.until + NEAR
    parts = of_worker[:, first : change.position], of_worker[:, change.until : end]
    before, after = (np.median(part, axis=1) for part in parts)
    way = np.log(after / before) / np.log(ratio)
    return set(np.flatnonzero(way >= 0.5).tolist())


def _happening(
    course: Course,
    what: str,
    change: Change,
    before_s: float,
    ratio: float,
    to_blame: tuple[Culprit, ...] = (),
) -> Happening:
    steps = int(course.steps[change.position]), int(course.steps[change.until])
    return Happening(*steps, what, before_s, before_s * ratio, to_blame)
