"""All fixes for one window: those that apply, the largest gain first, and why not the others.

Gains of several fixes do not add up: two causes hide each other (a step waits for the slowest), or
one fix makes another pointless. So the best set of at most three is simulated, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from app.advice import (
    balance_experts,
    balance_sequences,
    move_microbatches,
    other_schedule,
    pack_sequences,
    removed_causes,
    replace_worker,
    resplit_stages,
    straggl_ar,
)
from app.advice.change import can_combine
from app.advice.facts import Facts
from app.advice.fix import MIN_SPEED_UP, AdviceCase, Fix, Method, Need, NotOffered
from app.advice.signs import SIGNS
from app.engine.questions.edits import edits_as_json
from app.result.causes import GC_PAUSE
from app.result.record import Record
from app.result.window_result import NeedRecord, Snippet, TopFix
from app.result.words import WAITS_NOT_RECORDED

MAX_TOGETHER = 3
# Sets of the fixes that win most by themselves are simulated: at most 6 pairs and 4 triples.
MAX_CANDIDATES = 4
# A set must be so much faster than the best smaller one to be worth another fix.
MIN_MORE = 1.01
# Both say how many layers, or micro-batches, a stage or replica has: what is to be pasted for one
# contradicts the other.
CONFLICTS = (
    frozenset({"other-schedule", "resplit-stages"}),
    frozenset({"other-schedule", "move-microbatches"}),
)


@dataclass(frozen=True, slots=True)
class FixSet:
    """Fixes that are made together, and the mean step in seconds with all of them."""

    fixes: tuple[Fix, ...]
    step_s: float

    @property
    def before_s(self) -> float:
        """T, seconds."""
        return self.fixes[0].before_s

    @property
    def speed_up(self) -> float:
        """T / T_new."""
        return self.before_s / self.step_s

    @property
    def gpu_hours_per_day(self) -> float:
        """GPU-hours that a day of training needs less."""
        return 24.0 * self.fixes[0].num_gpus * (1 - self.step_s / self.before_s)


def best_together(case: AdviceCase, fixes: Sequence[Fix]) -> FixSet | None:
    """The fastest set of two or three of the fixes; None if no set beats the best one by 1 %.

    `fixes` are sorted: those that are to be considered first come first.
    """
    candidates, best = fixes[:MAX_CANDIDATES], None
    limit_s = min((fix.step_s for fix in fixes), default=0.0)
    for size in range(2, MAX_TOGETHER + 1):
        sets = [
            FixSet(combination, case.step_s_with(*(fix.change for fix in combination)))
            for combination in combinations(candidates, size)
            if _fit_together(combination)
        ]
        fastest = min(sets, key=lambda fix_set: fix_set.step_s, default=None)
        if fastest is None or fastest.step_s * MIN_MORE > limit_s:
            break
        best, limit_s = fastest, fastest.step_s
    return best


def _fit_together(fixes: Sequence[Fix]) -> bool:
    """Whether no two remove the same cause, contradict each other, or rebuild the pipeline."""
    causes = [fix.cause for fix in fixes if fix.cause is not None]
    names = {fix.name for fix in fixes}
    return (
        len(set(causes)) == len(causes)
        and not any(conflict <= names for conflict in CONFLICTS)
        and can_combine([fix.change for fix in fixes])
    )


# Of several fixes of one cause the one that is tried first comes first. Some need no cause: any
# pipeline may have a large bubble, and whatever makes a rank late.
METHODS: tuple[Method, ...] = (
    Method(replace_worker.NAME, replace_worker.CAUSES, replace_worker.replace_worker),
    Method(move_microbatches.NAME, move_microbatches.CAUSES, move_microbatches.move_microbatches),
    Method(resplit_stages.NAME, resplit_stages.CAUSES, resplit_stages.resplit_stages),
    Method(balance_sequences.NAME, balance_sequences.CAUSES, balance_sequences.balance_sequences),
    Method(pack_sequences.NAME, pack_sequences.CAUSES, pack_sequences.pack_sequences),
    Method(removed_causes.PLANNED_GC, (GC_PAUSE,), removed_causes.planned_gc),
    Method(removed_causes.REPAIR_LINK, removed_causes.NETWORK_CAUSES, removed_causes.repair_link),
    Method(other_schedule.NAME, (), other_schedule.other_schedule),
    Method(straggl_ar.NAME, (), straggl_ar.straggl_ar),
    Method(balance_experts.NAME, balance_experts.CAUSES, balance_experts.balance_experts),
    Method(replace_worker.BACKUP_TASKS, replace_worker.CAUSES, replace_worker.backup_tasks),
)


@dataclass(frozen=True, slots=True)
class Advice:
    """Fixes that apply, the largest gain first; fixes that do not; facts used.

    `together` is the best set of several fixes, None where none is better than the best fix.
    `withheld` is the reason why nothing can be advised, None where something could.
    """

    fixes: tuple[Fix, ...]
    not_offered: tuple[NotOffered, ...]
    facts: Facts
    together: FixSet | None = None
    withheld: str | None = None


def advise(case: AdviceCase) -> Advice:
    """Ask every fix; none if the replay is too far from the record to predict anything."""
    reason = withheld_because(case)
    if reason is not None:
        return Advice((), (), case.facts, withheld=reason)
    answers = {method.name: method.predict(case) for method in METHODS}
    preferred = _preferred(case, lambda method: answers[method.name])
    fixes = _best_first(case, answers.values(), preferred)
    together = best_together(case, fixes)
    needed = () if together is None else [fix.name for fix in together.fixes]
    worth = [fix for fix in fixes if _wins(fix) or fix.name in needed]
    others = [answer for answer in answers.values() if isinstance(answer, NotOffered)]
    others += [_too_little(fix) for fix in fixes if fix not in worth]
    return Advice(tuple(worth), tuple(others), case.facts, together)


def top_fix(case: AdviceCase) -> Fix | None:
    """The first fix of `advise` that removes a cause of the window; None if there is none.

    No other methods are asked than it takes, so it is cheap enough for every window.
    """
    if withheld_because(case) is not None:
        return None
    preferred = _preferred(case, lambda method: method.predict(case))
    return next(iter(_best_first(case, preferred, preferred)), None)


def _preferred(case: AdviceCase, answer_of: Callable[[Method], Fix | NotOffered]) -> list[Fix]:
    """Of each cause of the window the fix by the first method that applies and wins."""
    causes_left: set[str] = {finding.cause for finding in case.result.findings or ()}
    preferred: list[Fix] = []
    for method in METHODS:
        if causes_left.intersection(method.causes):
            answer = answer_of(method)
            if isinstance(answer, Fix) and _wins(answer):
                preferred.append(answer)
                causes_left -= set(method.causes)
    return preferred


def _wins(fix: Fix) -> bool:
    """Whether the gain of the fix by itself is large enough."""
    return fix.speed_up >= MIN_SPEED_UP


def _too_little(fix: Fix) -> NotOffered:
    share = 100 * (1 - fix.step_s / fix.before_s)
    return NotOffered(fix.name, f"{fix.title}: it wins {share:.1f} % by itself, less than 1 %")


def _best_first(
    case: AdviceCase, answers: Iterable[Fix | NotOffered], preferred: Iterable[Fix]
) -> list[Fix]:
    """The fixes offered: those preferred, then others of causes, then all others.

    Of each kind the largest gain comes first. Their ranges are as wide as the replay is wrong.
    """
    fixes = (
        answer.with_error(case.discrepancy, case.step_error_s)
        for answer in answers
        if isinstance(answer, Fix)
    )
    names = {fix.name for fix in preferred}
    return sorted(
        fixes,
        key=lambda fix: (fix.cause is None, fix.name not in names, fix.step_s, fix.name),
    )


def withheld_because(case: AdviceCase) -> str | None:
    """The reason why no gain can be predicted; None if one can."""
    if case.result.wait_coverage == 0:
        return WAITS_NOT_RECORDED
    if case.result.fidelity.verdict != "ok":
        return "the replay is too far from the record to predict a gain"
    if case.result.findings is None:
        return "no cause could be concluded, so none can be removed"
    return None


class FixSetRecord(Record, kw_only=True, frozen=True):
    """Fixes that are made together, by name."""

    fixes: tuple[str, ...]
    step_s: float
    step_s_before: float
    speed_up: float
    gpu_hours_per_day: float


class NotOfferedRecord(Record, kw_only=True, frozen=True):
    """A fix that is not advised, and why."""

    fix: str
    reason: str
    needs: tuple[NeedRecord, ...]


class AdviceRecord(Record, kw_only=True, frozen=True):
    """All fixes for one window, as answers and files have them; unknown is None."""

    withheld: str | None
    fixes: tuple[TopFix, ...]
    together: FixSetRecord | None
    not_offered: tuple[NotOfferedRecord, ...]


def advice_record(advice: Advice) -> AdviceRecord:
    """The advice as a record."""
    return AdviceRecord(
        withheld=advice.withheld,
        fixes=tuple(fix_record(fix) for fix in advice.fixes),
        together=None if advice.together is None else _together(advice.together),
        not_offered=tuple(
            NotOfferedRecord(fix=other.name, reason=other.reason, needs=_needs(other.needs))
            for other in advice.not_offered
        ),
    )


def _together(fix_set: FixSet) -> FixSetRecord:
    return FixSetRecord(
        fixes=tuple(fix.name for fix in fix_set.fixes),
        step_s=fix_set.step_s,
        step_s_before=fix_set.before_s,
        speed_up=fix_set.speed_up,
        gpu_hours_per_day=fix_set.gpu_hours_per_day,
    )


def fix_record(fix: Fix) -> TopFix:
    """One fix as a record; unknown is None."""
    return TopFix(
        fix=fix.name,
        cause=fix.cause,
        title=fix.title,
        step_s=fix.step_s,
        step_range_s=fix.step_range_s,
        step_s_before=fix.before_s,
        speed_up=fix.speed_up,
        gpu_hours_per_day=fix.gpu_hours_per_day,
        gpu_hours_per_day_range=fix.gpu_hours_per_day_range,
        confidence=fix.confidence,
        risk=fix.risk,
        microbatches=fix.microbatches,
        stops_job=fix.stops_job,
        stop_minutes=fix.stop_minutes,
        pays_after_minutes=fix.pays_after_minutes,
        lost_minutes=fix.lost_minutes,
        lost_is_at_least=fix.lost_is_at_least,
        pays_now=fix.pays_now,
        paste=tuple(Snippet(label=paste.label, text=paste.text) for paste in fix.paste),
        needs=_needs(fix.needs),
        what_if=tuple(edits_as_json(fix.change.edits)) if fix.change.is_question else None,
        can_be_tracked=fix.name in SIGNS,
    )


def _needs(needs: Sequence[Need]) -> tuple[NeedRecord, ...]:
    return tuple(NeedRecord(fact=need.fact, text=need.text) for need in needs)
