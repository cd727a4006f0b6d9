"""Who gets an alert, where more is over a threshold than a job may have alerts at once?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.alerts.alert import AlertState
from app.alerts.readings.registry import has_subjects
from app.alerts.rule import SEVERITIES, Rule
from app.alerts.seen_window import SeenWindow

MOST_ALERTS = 1000  # of one job


@dataclass(frozen=True, slots=True)
class Chosen:
    """Subjects to look at in a window for one rule; `num_more` are over its threshold, besides."""

    seen: SeenWindow
    subjects: Sequence[str]
    num_more: int


def chosen(
    windows: Sequence[SeenWindow], states: Iterable[AlertState], rules: Mapping[str, Rule]
) -> list[Chosen]:
    """For each of a job's rules, those that have an alert, and the worst of those without.

    A whole job's alert always has room: it says more than those of any of its workers.
    """
    known: dict[str, set[str]] = {each.rule.name: set() for each in windows}
    for state in states:
        known.setdefault(state.rule, set()).add(state.subject)
    over = [each.over(known[each.rule.name]) for each in windows]
    admitted = _worst(windows, over, _room(known, rules))
    return [
        Chosen(
            each, [*sorted(known[each.rule.name]), *subjects], len(over[at]) - len(subjects)
        )
        for at, (each, subjects) in enumerate(zip(windows, admitted, strict=True))
    ]  # fmt: skip


def _room(known: Mapping[str, set[str]], rules: Mapping[str, Rule]) -> int:
    """How many more subjects may have alerts."""
    of_jobs = {name for name, rule in rules.items() if not has_subjects(rule)}
    num_known = sum(len(subjects) for name, subjects in known.items() if name not in of_jobs)
    return max(0, MOST_ALERTS - len(of_jobs) - num_known)


def _worst(
    windows: Sequence[SeenWindow], over: Sequence[Sequence[str]], room: int
) -> list[list[str]]:
    """So many of the subjects, by severity and by what they cost; and whole jobs."""
    ranked = sorted(
        (-SEVERITIES.index(each.rule.severity), -each.cost(subject), at, place)
        for at, each in enumerate(windows)
        if each.figure.has_subjects
        for place, subject in enumerate(over[at])
    )
    found = [[] if each.figure.has_subjects else list(over[at]) for at, each in enumerate(windows)]
    for _, _, at, place in ranked[:room]:
        found[at].append(over[at][place])
    return found
