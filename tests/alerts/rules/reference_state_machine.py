"""The obvious way to follow one alert: look at the whole history again after every window."""

from typing import NamedTuple

from app.alerts.rule import Rule


class Seen(NamedTuple):
    """One complete window, in order."""

    epoch: int
    value: float
    took_s: float
    is_sure: bool = True


def history(rule: Rule, windows: list[Seen]) -> list[str]:
    """Kinds of all transitions, by the definition and nothing else."""
    events: list[str] = []
    for end in range(1, len(windows) + 1):
        events += _of_last(rule, windows[:end], _is_firing(events), _is_pending(events))
    return events


def _of_last(rule: Rule, windows: list[Seen], is_firing: bool, is_pending: bool) -> list[str]:
    last = windows[-1]
    assert rule.above is not None
    assert rule.clear is not None
    above, clear = rule.above, rule.clear
    if is_firing:
        below = _trailing(windows, lambda each: each.value < above)
        counted_s = sum(each.took_s * (1 if each.value < clear else 0.5) for each in below)
        may_end = last.value < clear or (last.value < above and rule.keep_firing_s > 0)
        return ["resolved"] if may_end and counted_s >= rule.keep_firing_s else []
    is_new_run = len(windows) > 1 and windows[-2].epoch != last.epoch
    holds = last.value >= above and last.is_sure
    ended = ["cleared"] if is_pending and (is_new_run or not holds) else []
    if not holds:
        return ended
    over = _trailing(windows, lambda each: each.value >= above and each.is_sure)
    if len(over) >= rule.for_windows and _took(over) >= rule.for_s:
        return [*ended, "firing"]
    return ended if is_pending and not ended else [*ended, "pending"]


def _trailing(windows, holds):
    """The last windows of the same run for which it holds, in a row."""
    found: list[Seen] = []
    for each in reversed(windows):
        if each.epoch != windows[-1].epoch or not holds(each):
            break
        found.insert(0, each)
    return found


def _took(windows: list[Seen]) -> float:
    return sum(each.took_s for each in windows)


def _is_firing(events: list[str]) -> bool:
    return bool(events) and events[-1] == "firing"


def _is_pending(events: list[str]) -> bool:
    return bool(events) and events[-1] == "pending"
