"""What suspicions cost, and which of them hold.

    cost = (T' - T'_repaired) / T'

T' is the mean replayed step time with the launch delays of all suspicions added; T'_repaired the
same with one suspicion repaired. Both include what a replay leaves out of odd steps, as evaluations
are part of a job's time, and idle time of all ranks between steps. Without all of these T' = T.
What a worker does at the end of a step is hidden where the others begin the next one meanwhile:
such seconds are in neither.

One fault may look like two causes. Pairs of causes that may be confused are compared operation by
operation: if most of the smaller one's excess time is also in the larger one, the larger one
explains it. Two faults of one worker have different excess times, and both remain.

Of several culprits each is held against its own repair: 1 - T_all_repaired / T_all_others_repaired.
Repairing it alone would win nothing where another culprit is as slow: everybody still waits for
that one. So a culprit's cost is what is lost while it alone is left unrepaired. A culprit with a
cost below `MIN_CULPRIT_COST` is dropped: it is noise, a neighbour, or slow where no worker waits
for it.

A transfer begins on one host and ends on another, so an excess below the clocks' error is no
evidence. A computation has one clock.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np

from app import formatting
from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion, as_ratio, names_of
from app.diagnosis.evidence.expert_levels import hot_by_routing
from app.diagnosis.evidence.idle_time import idle_in_steps_s
from app.diagnosis.evidence.late_launches import LAUNCHED_LATER_S
from app.diagnosis.evidence.usual_steps import is_usual, usual_steps
from app.diagnosis.finding import Worker
from app.diagnosis.repair import Repair, Repaired
from app.engine.kernels import all_of
from app.engine.replays import WindowReplay
from app.engine.what_if import IDEAL, RECORDED, Peers, Replayer, step_times
from app.result import causes
from app.result.causes import CAUSES, cause_phrase, may_be_confused
from app.result.finding import RuledOut
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class SuspicionCosts:
    """Step times T', `blamed_s` [steps], and T'_repaired of each suspicion, `repaired_s` [steps].

    None where a suspicion has nothing to repair. `idle_s` [steps] is the part of all of them in
    which nobody works.
    """

    blamed_s: Floats
    repaired_s: tuple[Floats | None, ...]
    idle_s: Floats | float = 0.0

    def of(self, index: int) -> float | None:
        """Cost of a suspicion as a share of the job's time; None where it has nothing to repair."""
        repaired_s = self.repaired_s[index]
        if repaired_s is None:
            return None
        return float(1.0 - repaired_s.mean() / self.blamed_s.mean())


def suspicion_costs(case: Case, suspicions: Sequence[Suspicion]) -> SuspicionCosts:
    """Step times with and without each suspicion."""
    replay, delays = case.replay, [suspicion.delays for suspicion in suspicions]
    blamed_s = _step_times(replay, delays)
    replays = [
        partial(_step_times, replay, [*delays[:index], *delays[index + 1 :]], [suspicion.repair])
        for index, suspicion in enumerate(suspicions)
        if _is_replayed(suspicion)
    ]
    answers = iter(all_of(replay.size, replays))
    repaired_s = [next(answers) if _is_replayed(suspicion) else None for suspicion in suspicions]
    hidden_s = [
        _hidden_s(case, suspicion, without_s, blamed_s)
        for suspicion, without_s in zip(suspicions, repaired_s, strict=True)
    ]
    all_hidden_s = np.minimum(np.sum(hidden_s, axis=0), blamed_s)
    odd_s, idle_s = _left_out_s(case, blamed_s - all_hidden_s)
    left_out_s = odd_s + idle_s - all_hidden_s
    return SuspicionCosts(
        blamed_s + left_out_s,
        tuple(
            None if without_s is None else without_s + own_s + left_out_s
            for without_s, own_s in zip(repaired_s, hidden_s, strict=True)
        ),
        idle_s,
    )


def _hidden_s(
    case: Case, suspicion: Suspicion, repaired_s: Floats | None, blamed_s: Floats
) -> Floats:
    """[steps], seconds of a slow end of a step during which the others begin the next step.

    Replays have each step alone; where times between steps are known, the recorded steps are
    periods, of which the first one of the window ends when the others begin the next step.
    """
    has_periods = all(group.replayer.grid.origin_s is not None for group in case.groups)
    if not (suspicion.is_at_step_end and has_periods) or repaired_s is None:
        return np.zeros(blamed_s.size)
    at_end_s = blamed_s - repaired_s
    hidden_s = np.clip(blamed_s - case.report.recorded_s, 0.0, np.maximum(at_end_s, 0.0))
    usual = usual_steps(case)[usual_steps(case) > 0]
    usual = usual[at_end_s[usual] > 0]
    # The first one and odd ones hide as much as the others do.
    others = np.setdiff1d(np.flatnonzero(at_end_s > 0), usual)
    hidden_s[others] = 0.0
    if usual.size:
        hidden_s[others] = np.minimum(np.median(hidden_s[usual]), at_end_s[others])
    return hidden_s


def _left_out_s(case: Case, blamed_s: Floats) -> tuple[Floats, Floats]:
    """[steps], seconds beyond the replay: of odd steps, and idle time of all ranks in any step."""
    beyond_s = np.maximum(0.0, case.replay.recorded_s - blamed_s)
    idle_s = np.minimum(beyond_s, idle_in_steps_s(case))
    return np.where(is_usual(case), 0.0, beyond_s - idle_s), idle_s


def blamed_step_times_s(
    case: Case, suspicions: Sequence[Suspicion]
) -> tuple[Floats, Floats, Floats]:
    """[steps], seconds: T', and of it what odd steps take beyond their replay, and idle time."""
    blamed_s = _step_times(case.replay, [suspicion.delays for suspicion in suspicions])
    odd_s, idle_s = _left_out_s(case, blamed_s)
    return blamed_s + odd_s + idle_s, odd_s, idle_s


def cost_after_other_repairs(
    case: Case, suspicions: Sequence[Suspicion], index: int
) -> float | None:
    """Cost of a suspicion with all others repaired; None where it is not replayed.

    An operation that several repair is shortened by each of them.
    """
    suspicion, others = suspicions[index], [*suspicions[:index], *suspicions[index + 1 :]]
    if not _is_replayed(suspicion):
        return None
    repairs = [other.repair for other in others]
    with_it_s = _step_times(case.replay, [suspicion.delays], repairs)
    without_s = _step_times(case.replay, [], [*repairs, suspicion.repair])
    return float(1.0 - without_s.mean() / with_it_s.mean())


RowChoice = Callable[[Replayer], Ints]


class RepairedTogether:
    """All repairs of some suspicions at once, without late launches.

    Where two repair one operation, it is shortened by both. The repaired durations are computed
    once for all questions.
    """

    def __init__(self, case: Case, suspicions: Sequence[Suspicion]) -> None:
        repairs = [suspicion.repair for suspicion in suspicions if suspicion.repair is not None]
        self.has_repair = bool(repairs)
        self._case = case
        self._edited = [(group, _EditedDurations(group, repairs)) for group in case.replay.groups]

    @cached_property
    def step_s(self) -> Floats:
        """[steps], seconds."""
        return self._joined([edited.step_times() for _, edited in self._edited])

    @cached_property
    def ideal_s(self) -> Floats:
        """[steps], seconds: T_ideal with the means of the repaired durations.

        A fault raises the mean of its op type, and with it the ideal.
        """
        if not self.has_repair:
            return self._case.report.ideal_s
        return self._joined(
            [np.full(len(group.steps), edited.ideal_step_s()) for group, edited in self._edited]
        )

    def with_ideal_s(self, rows: RowChoice) -> Floats:
        """[steps], seconds where these rows of the template take their ideal durations instead."""
        return self._joined(
            [edited.with_ideal(rows(group)).step_times() for group, edited in self._edited]
        )

    def _joined(self, answers: list[Floats]) -> Floats:
        of_groups = iter(answers)
        return self._case.replay.joined(lambda _: next(of_groups))


def step_times_with(case: Case, repairs: Sequence[Repair]) -> list[Floats]:
    """[steps] replayed step times in seconds, with each of these repairs alone."""
    replay = case.replay
    return all_of(replay.size, [partial(_step_times, replay, [], [repair]) for repair in repairs])


# Share of the step time.
MIN_CULPRIT_COST = 0.01
# More culprits are one group by any measure; every one takes a simulation.
MAX_CULPRITS = 32


def drop_cheap_culprits(case: Case, suspicion: Suspicion) -> Suspicion:
    """The suspicion without culprits that win back less than `MIN_CULPRIT_COST`."""
    parts = suspicion.parts
    if parts is None or suspicion.repair is None:
        return suspicion
    kept = culprits_that_cost(case, parts.number, parts.repair)
    return suspicion if len(kept) == parts.number else parts.suspicion(kept)


def culprits_that_cost(
    case: Case, number: int, repair: Callable[[Sequence[int]], Repair]
) -> Sequence[int]:
    """Positions of the culprits whose own repair wins back `MIN_CULPRIT_COST` or more.

    All of them where none does, where there are more than `MAX_CULPRITS`, and where those to be
    dropped matter together although none does alone.

    Args:
        case: the window.
        number: how many culprits may be dropped separately.
        repair: of those at some positions, at least one.
    """
    of_all = range(number)
    if not 1 < number <= MAX_CULPRITS:
        return of_all
    others = [repair([other for other in of_all if other != at]) for at in of_all]
    all_repaired_s, *one_left_s = _mean_step_s(case, [repair(of_all), *others])
    costs = [1.0 - all_repaired_s / left_s for left_s in one_left_s]
    kept = [at for at, cost in enumerate(costs) if cost >= MIN_CULPRIT_COST]
    if not kept or len(kept) == number:
        return of_all
    [kept_repaired_s] = _mean_step_s(case, [repair(kept)])
    if 1.0 - all_repaired_s / kept_repaired_s >= MIN_CULPRIT_COST:
        return of_all
    return kept


def _mean_step_s(case: Case, repairs: Sequence[Repair]) -> list[float]:
    """Mean seconds of a step with each of these repairs alone."""
    return [float(step_s.mean()) for step_s in step_times_with(case, repairs)]


def step_times_delayed(case: Case, delays: Repair) -> Floats:
    """[steps] replayed step times in seconds, with these delays added."""
    return _step_times(case.replay, [delays])


def _is_replayed(suspicion: Suspicion) -> bool:
    return suspicion.repair is not None or suspicion.delays is not None


def _step_times(
    replay: WindowReplay, delays: Sequence[Repair | None], repairs: Sequence[Repair | None] = ()
) -> Floats:
    """[steps], seconds with repairs applied, then delays added, as far as there are any."""
    applied = [repair for repair in repairs if repair is not None]
    added = [late for late in delays if late is not None]

    def of_group(group: Replayer) -> Floats:
        edited = _EditedDurations(group, applied)
        for late in added:
            edited.add(late(group))
        return edited.step_times()

    return replay.joined(of_group) if applied or added else replay.simulated_s


class _EditedDurations:
    """Durations that replace recorded ones in some rows."""

    def __init__(self, group: Replayer, repairs: Iterable[Repair] = ()) -> None:
        self._group = group
        self._source = np.full(group.graph.num_rows, RECORDED, np.int32)
        self._edited_s = np.empty((0, group.durations.recorded_s.shape[1]))
        self._is_idealised = False
        for repair in repairs:
            self._take(repair(group))

    def _take(self, repaired: Repaired) -> None:
        """New durations; milestones inside an operation move in proportion.

        An operation that was repaired before is shortened by both factors. It gets no shorter than
        its ideal and both repairs: two may take away the same excess.
        """
        duration_s, rows, durations = repaired.duration_s, repaired.rows, self._group.durations
        known = np.flatnonzero(self._source[rows] >= 0)
        if known.size:
            duration_s = duration_s.copy()
            new_s, recorded_s = duration_s[known], durations.recorded_s[rows[known]]
            before_s = self._edited_s[self._source[rows[known]]]
            share = np.divide(before_s, recorded_s, out=np.ones(new_s.shape), where=recorded_s > 0)
            least_s = np.minimum(np.minimum(new_s, before_s), durations.ideal_s[rows[known], None])
            duration_s[known] = np.maximum(new_s * share, least_s)
        inside, of_row = self._inside(rows)
        milestones_s = duration_s[of_row] * self._group.graph.milestone_share[inside][:, None]
        self._append(rows, duration_s)
        self._append(self._group.graph.num_ops + inside, milestones_s)

    def with_ideal(self, rows: Ints) -> "_EditedDurations":
        """A copy where these operations, and the milestones inside them, are ideal."""
        inside, _ = self._inside(rows)
        edited = _EditedDurations(self._group)
        edited._edited_s, edited._source = self._edited_s, self._source.copy()
        edited._source[rows] = IDEAL
        edited._source[self._group.graph.num_ops + inside] = IDEAL
        edited._is_idealised = True
        return edited

    def add(self, delays: Repaired) -> None:
        """Delays the start of operations, and the milestones inside them, by these seconds.

        What operations wait for on their way is not delayed by their late start.
        """
        inside, of_row = self._inside(delays.rows)
        rows = np.concatenate([delays.rows, self._group.graph.num_ops + inside])
        new = rows[self._source[rows] == RECORDED]
        self._append(new, self._group.durations.recorded_s[new])
        sign = np.sign(self._group.graph.milestone_share[inside])[:, None]
        later_s = np.concatenate([delays.duration_s, sign * delays.duration_s[of_row]])
        self._edited_s[self._source[rows]] += later_s

    def ideal_step_s(self) -> float:
        """Seconds of an ideal step, computations at the mean of their edited durations."""
        graph, durations = self._group.graph, self._group.durations
        template, ideal_s = self._group.template, durations.ideal_s.copy()
        optype = np.concatenate([template.optype, template.optype[graph.milestone_of]])
        edited = np.flatnonzero(self._source[: template.num_ops] >= 0)
        for code in np.unique(template.optype[edited]).tolist():
            if not template.op_types.by_code[code].idealised_by_mean:
                continue
            of_type = np.flatnonzero(template.optype == code)
            rows = edited[template.optype[edited] == code]
            before_s = float(durations.recorded_s[of_type].sum())
            less_s = float((durations.recorded_s[rows] - self._edited_s[self._source[rows]]).sum())
            if before_s > 0:
                ideal_s[optype == code] *= max(0.0, 1.0 - less_s / before_s)
        nothing = np.zeros((self._group.class_stage.size, 1), np.bool_)
        alone = Peers(np.zeros(1, np.int64), 1)
        return float(step_times(graph, replace(durations, ideal_s=ideal_s), nothing, alone)[0])

    def step_times(self) -> Floats:
        """[steps], seconds."""
        group = self._group
        if not len(self._edited_s) and not self._is_idealised:
            return group.simulated_s
        edited_s = self._edited_s
        if not len(edited_s):
            edited_s = np.empty((1, group.durations.recorded_s.shape[1]))
        return group.edited_s(self._source, edited_s)

    def _inside(self, rows: Ints) -> tuple[Ints, Ints]:
        """Milestones inside these operations, and the positions in `rows` of their rows."""
        milestone_of = self._group.graph.milestone_of
        if not milestone_of.size:
            return milestone_of, milestone_of
        position = np.full(self._group.graph.num_ops, -1, np.int64)
        position[rows] = np.arange(rows.size)
        of_row = position[milestone_of]
        inside = np.flatnonzero(of_row >= 0)
        return inside, of_row[inside]

    def _append(self, rows: Ints, duration_s: Floats) -> None:
        if not rows.size:
            return
        size = len(self._edited_s)
        self._source[rows] = np.arange(size, size + rows.size)
        own_s = np.ascontiguousarray(duration_s)
        self._edited_s = np.concatenate([self._edited_s, own_s]) if size else own_s.copy()


# Share of the smaller one's excess time.
_MIN_SHARED = 0.7


def drop_explained(
    case: Case, suspicions: Sequence[Suspicion]
) -> tuple[list[Suspicion], list[RuledOut]]:
    """The suspicions that remain, and those that another one explains."""
    explained: dict[str, RuledOut] = _late_hosts(case, suspicions) | _experts(case, suspicions)
    explained |= _busy_hosts(case, suspicions) | _waits_in_stops(suspicions)
    left = [suspicion for suspicion in suspicions if suspicion.cause not in explained]
    if folded := _late_forwards(case, left):
        slow, late = folded
        explained |= _explained(slow, late.cause)
        left = [_with_repair_of(slow, late) if other is late else other for other in left]
        left.remove(slow)
    for one, other in combinations(left, 2):
        if not may_be_confused(one.cause, other.cause):
            continue
        shared = _shared_time(case, one, other)
        small, large = (one, other) if shared.first_s <= shared.second_s else (other, one)
        if shared.of_smaller >= _MIN_SHARED:
            explained |= _explained(small, large.cause, share_explained=shared.of_smaller)
    left = [suspicion for suspicion in left if suspicion.cause not in explained]
    return left, list(explained.values())


def _experts(case: Case, suspicions: Sequence[Suspicion]) -> dict[str, RuledOut]:
    """Drops sequence-imbalance where experts explain it, and the workers that these slow."""
    explained: dict[str, RuledOut] = {}
    has_load = any(suspicion.cause == causes.EXPERT_IMBALANCE for suspicion in suspicions)
    # Arrivals may have some of the same slow workers again.
    alike = [suspicion for suspicion in suspicions if suspicion.cause in _LIKE_EXPERTS]
    for suspicion in sorted(alike, key=lambda other: _LIKE_EXPERTS.index(other.cause)):
        cause, reason = suspicion.cause, None
        is_hot = cause == causes.SLOW_WORKER and _are_hot(case, suspicion)
        if has_load and (is_hot or cause == causes.SEQUENCE_IMBALANCE):
            explained |= _explained(suspicion, causes.EXPERT_IMBALANCE)
        elif is_hot:
            reason = _ROUTING
        elif not _knows_loads(case) and _may_be_experts(case, suspicion):
            reason = _NOT_TOLD_FROM_EXPERTS
        if reason is not None:
            explained[cause] = deny(suspicion, reason, insufficient=True)
    return explained


_ROUTING = (
    "the same place of every expert-parallel block is slow, or gets more tokens: that is the load "
    "of its experts, not its GPU"
)
_NOT_TOLD_FROM_EXPERTS = (
    "several ranks of an expert-parallel block compute longer: without token counts, busy experts "
    "and slow GPUs or hosts look alike"
)
# Computations of all ranks of a block that are long now and then are no stops either.
_STOPS = (causes.ALLOCATOR_STALL, causes.CPU_CONTENTION)
# What busy experts look like.
_LIKE_EXPERTS = (causes.SEQUENCE_IMBALANCE, causes.SLOW_WORKER, *_STOPS)
# So many slow workers, of no common host, are more likely to have busy experts than bad GPUs.
_MIN_SLOW_WORKERS = 3


def _may_be_experts(case: Case, suspicion: Suspicion) -> bool:
    """Whether unknown loads of a job with experts may explain slow workers, or stops."""
    if suspicion.cause == causes.SEQUENCE_IMBALANCE:
        return False
    are_hosts = all(culprit.host and culprit.dp_rank is None for culprit in suspicion.culprits)
    are_many = len(suspicion.workers) >= _MIN_SLOW_WORKERS and not are_hosts
    is_slow = suspicion.cause == causes.SLOW_WORKER
    return _is_one_block(case, suspicion.workers) or (is_slow and are_many)


def _knows_loads(case: Case) -> bool:
    """Whether loads of experts are known, or there are no experts."""
    return case.parallelism.ep_size < 2 or "tokens" in case.new_history.signals


def _is_one_block(case: Case, workers: Sequence[Worker]) -> bool:
    """Whether these are all ranks of one expert-parallel block, of one stage or several.

    All of a block wait for its fullest expert, so all of them take longer, as on a slow host.
    """
    ep_size = case.parallelism.ep_size
    blocks = {dp_rank // ep_size for dp_rank, _ in workers}
    stages = {stage for _, stage in workers}
    return len(blocks) == 1 and len(set(workers)) == ep_size * len(stages)


def _are_hot(case: Case, slow: Suspicion) -> bool:
    """Whether routing explains each of the slow workers."""
    hot = hot_by_routing(case)
    return bool(slow.workers) and all(hot[worker] for worker in slow.workers)


def _late_hosts(case: Case, suspicions: Sequence[Suspicion]) -> dict[str, RuledOut]:
    """Drops late-host or the cause behind it, so that one fault is named once.

    Data waits are data-loading, garbage collection is gc-pause, and long computations may be told
    with their late launches.
    """
    by_cause = {suspicion.cause: suspicion for suspicion in suspicions}
    loading, late = by_cause.get(causes.DATA_LOADING), by_cause.get(causes.LATE_HOST)
    explained: dict[str, RuledOut] = {}
    if loading is not None and loading.culprits and loading.basis != "recorded":
        for suspicion in suspicions:
            # All launches are late, not only those that may wait for data.
            is_steady = LAUNCHED_LATER_S in suspicion.evidence
            if is_steady and set(loading.workers) <= _workers_of(case, suspicion):
                explained = _explained(loading, suspicion.cause)
    if late is None:
        return explained
    because, workers = late.evidence["late_because"], late.evidence["workers"]
    is_first = LAUNCHED_LATER_S not in late.evidence
    # A data wait without annotation is a late launch of the first computation.
    if is_first and loading is not None and (not loading.culprits or _names_all(loading, workers)):
        return _explained(late, causes.DATA_LOADING)
    busy = by_cause.get(causes.CPU_CONTENTION)
    if because == "unknown host work" and busy is not None and _names_all(busy, workers):
        return explained | _explained(late, causes.CPU_CONTENTION)
    if because == "gc" and causes.GC_PAUSE in by_cause:
        return explained | _explained(late, causes.GC_PAUSE)
    for slow in suspicions:
        has_launches = slow is not late and LAUNCHED_LATER_S in slow.evidence
        if has_launches and set(late.workers) <= _workers_of(case, slow):
            return explained | _explained(late, slow.cause)
    return explained


def _workers_of(case: Case, suspicion: Suspicion) -> set[Worker]:
    """Its workers; of stage-imbalance all of the stages."""
    if suspicion.cause != causes.STAGE_IMBALANCE:
        return set(suspicion.workers)
    stages = [culprit.stage for culprit in suspicion.culprits if culprit.stage is not None]
    return {(dp_rank, stage) for stage in stages for dp_rank in range(case.parallelism.dp_size)}


def _late_forwards(
    case: Case, suspicions: Sequence[Suspicion]
) -> tuple[Suspicion, Suspicion] | None:
    """Workers whose forwards alone are long, and the lateness of the same workers that explains it.

    A forward that is launched late, or piece by piece, is as long on a GPU that waits for its host
    as on a slow one, and its backward, which the host launches in advance, is not. The smaller of
    both is told with the larger. Where more workers launch late than compute longer, the launches
    are told once.
    """
    by_cause = {suspicion.cause: suspicion for suspicion in suspicions}
    slow = by_cause.get(causes.SLOW_WORKER)
    late = by_cause.get(causes.LATE_HOST)
    if slow is None:
        return None
    if late is not None and LAUNCHED_LATER_S in slow.evidence and LAUNCHED_LATER_S in late.evidence:
        return (slow, late) if set(slow.workers) <= set(late.workers) else None
    if slow.evidence.get("optypes") != ["forward-compute"]:
        return None
    if slow.evidence.get("host_sets_pace") is False:
        return None  # its GPU is slow for certain
    for cause in (causes.LATE_HOST, causes.DATA_LOADING):
        late = by_cause.get(cause)
        if late is None or not late.culprits or not set(slow.workers) <= set(late.workers):
            continue
        shared = _shared_time(case, slow, late)
        if shared.first_s <= shared.second_s:
            return slow, late
    return None


def _with_repair_of(slow: Suspicion, late: Suspicion) -> Suspicion:
    """The lateness with the cost of both, where it repairs no durations itself."""
    longer = float(slow.evidence["forward_slowdown"])
    note = (
        f"Of these, {names_of(slow.culprits)} also took {as_ratio(longer)} as long to compute"
        if LAUNCHED_LATER_S in slow.evidence
        else f"The forwards take {as_ratio(longer)} as long as the peers': because of the "
        "late host, or of a slow GPU, which look alike without launch times"
    )
    return replace(
        late,
        repair=late.repair or slow.repair,
        evidence={**late.evidence, "forward_slowdown": longer},
        note=f"{late.note}. {note}" if late.note else note,
    )


def _waits_in_stops(suspicions: Sequence[Suspicion]) -> dict[str, RuledOut]:
    """Drops stops in steps with reported waits for data: rows that say why win."""
    by_cause = {suspicion.cause: suspicion for suspicion in suspicions}
    stop, loading = by_cause.get(causes.JOB_STOP), by_cause.get(causes.DATA_LOADING)
    if stop is None or loading is None or loading.basis != "recorded":
        return {}
    is_same = set(stop.evidence["steps"]) <= set(loading.evidence["steps"])
    return _explained(stop, causes.DATA_LOADING) if is_same else {}


# Of the time that busy CPUs take: less is what stops too short to be seen singly add up to.
_MAX_SHARE_OF_BUSY = 0.5


def _busy_hosts(case: Case, suspicions: Sequence[Suspicion]) -> dict[str, RuledOut]:
    """Drops a small slowdown of the workers whose hosts are busy with something else."""
    busy = next(
        (suspicion for suspicion in suspicions if suspicion.cause == causes.CPU_CONTENTION), None
    )
    if busy is None:
        return {}
    held_up = set(busy.workers)
    explained: dict[str, RuledOut] = {}
    for slow in suspicions:
        is_slow = slow.cause in (causes.SLOW_WORKER, causes.STAGE_IMBALANCE)
        workers = _workers_of(case, slow) if is_slow else set()
        if workers and workers <= held_up:
            shared = _shared_time(case, slow, busy)
            if shared.first_s <= _MAX_SHARE_OF_BUSY * shared.second_s:
                explained |= _explained(slow, busy.cause)
    return explained


def _names_all(suspicion: Suspicion, workers: Sequence[Sequence[int]]) -> bool:
    return all(worker in suspicion.evidence["workers"] for worker in workers)


def deny(
    suspicion: Suspicion, reason: str, *, insufficient: bool = False, **figures: float
) -> RuledOut:
    """The answer that a suspicion does not hold, with its score; `insufficient`: none can tell."""
    return RuledOut(suspicion.cause, reason, insufficient, suspicion.score, figures)


def _explained(suspicion: Suspicion, by: str, **figures: float) -> dict[str, RuledOut]:
    reason = f"its lost time is explained by {cause_phrase(by)}"
    return {suspicion.cause: deny(suspicion, reason, insufficient=False, **figures)}


@dataclass(frozen=True, slots=True)
class _SharedTime:
    """Seconds of all operations that each of two suspicions is about, and that both are."""

    first_s: float
    second_s: float
    both_s: float

    @property
    def of_smaller(self) -> float:
        """Share of the smaller one's time."""
        smaller_s = min(self.first_s, self.second_s)
        return self.both_s / smaller_s if smaller_s > 0 else 0.0


def _shared_time(case: Case, one: Suspicion, other: Suspicion) -> _SharedTime:
    totals_s = np.zeros(3)
    for group in case.groups:
        first_s, second_s = _excess(group.replayer, one), _excess(group.replayer, other)
        shared = [np.minimum(first_s[row], second_s[row]) for row in first_s if row in second_s]
        parts = (first_s.values(), second_s.values(), shared)
        totals_s += [sum(float(row_s.sum()) for row_s in part) for part in parts]
    return _SharedTime(*totals_s.tolist())


def _excess(group: Replayer, suspicion: Suspicion) -> dict[int, Floats]:
    """Excess and late seconds [lanes] of each row of the suspicion."""
    excess_s: dict[int, Floats] = {}
    if suspicion.repair is not None:
        repaired = suspicion.repair(group)
        too_long_s = group.durations.recorded_s[repaired.rows] - repaired.duration_s
        excess_s = dict(zip(repaired.rows.tolist(), np.maximum(too_long_s, 0.0), strict=True))
    if suspicion.delays is not None:
        late = suspicion.delays(group)
        for row, late_s in zip(late.rows.tolist(), np.maximum(late.duration_s, 0.0), strict=True):
            excess_s[row] = excess_s[row] + late_s if row in excess_s else late_s
    return excess_s


def doubted_by_clocks(case: Case, suspicion: Suspicion) -> RuledOut | None:
    """The reason against a suspicion whose excess is below the clocks' error."""
    error_s = case.replay.clocks.error_s
    if not CAUSES[suspicion.cause].is_of_transfers or error_s is None or suspicion.repair is None:
        return None
    effect_s = _effect_s(case, suspicion.repair)
    if effect_s is None or effect_s >= error_s:
        return None
    reason = f"its transfers take {formatting.seconds(effect_s)} too long, and {clock_doubt(case)}"
    figures = {"effect_s": effect_s, "clock_residual_s": error_s}
    return deny(suspicion, reason, insufficient=True, **figures)


def clock_doubt(case: Case) -> str:
    """How wrong times between workers may be, in words."""
    clocks = case.replay.clocks
    error = formatting.seconds(clocks.error_s or 0.0)
    if clocks.residual_s is None:
        return f"the workers' clocks are unknown: ends that belong together are {error} apart"
    return f"the hosts' clocks are known to {error} only"


def _effect_s(case: Case, repair: Repair) -> float | None:
    """Mean excess seconds of the transfers that are too long; None where none is."""
    total_s, count = 0.0, 0
    for replayer in case.replay.groups:
        repaired = repair(replayer)
        more_s = replayer.durations.recorded_s[repaired.rows] - repaired.duration_s
        total_s += float(more_s[more_s > 0].sum())
        count += int((more_s > 0).sum())
    return total_s / count if count else None
