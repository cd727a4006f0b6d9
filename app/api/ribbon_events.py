"""What happened along a job's ribbon: when it became slow, restarted, alerted, lost steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app import words
from app.alerts.alert import AlertEvent
from app.api.ribbon_bins import Bin
from app.store.ribbon import Skipped

EventKind = Literal["onset", "recovery", "restart", "alert-firing", "alert-resolved", "skipped"]

# Changes so near to each other are one.
_TOGETHER = 2


@dataclass(frozen=True, slots=True)
class RibbonEvent:
    """Something at a step; `text` fits over the ribbon, `detail` says it whole.

    `at_s` is a Unix time: of what happens to steps, when their window was analysed.
    """

    step: int
    epoch: int
    at_s: float | None
    kind: EventKind
    text: str
    detail: str
    bin: int


def events(
    ribbon: Sequence[Bin],
    *,
    newest: Mapping[int, Mapping[str, Any]],
    beginnings: Mapping[int, float],
    alerts: Sequence[AlertEvent],
    skipped: Sequence[Skipped],
) -> list[RibbonEvent]:
    """All of them, ascending; those outside of the ribbon are left out.

    `newest` has each run's newest result by epoch.
    """
    found = [
        *_restarts(ribbon, beginnings),
        *(each for epoch, result in newest.items() for each in _changes(ribbon, epoch, result)),
        *_alerts(ribbon, alerts),
        *_skipped(ribbon, skipped),
    ]
    return sorted(found, key=lambda each: (each.epoch, each.step))


def _restarts(ribbon: Sequence[Bin], beginnings: Mapping[int, float]) -> Iterator[RibbonEvent]:
    oldest = ribbon[0].first.epoch if ribbon else 0
    for epoch, at_s in beginnings.items():
        if epoch <= oldest:
            continue  # its beginning is not on the ribbon, or nothing was before it
        at = next((n for n, each in enumerate(ribbon) if each.first.epoch == epoch), None)
        if at is not None:
            step = ribbon[at].first.first_step
            detail = f"Run {epoch} began at step {words.whole(step)}"
            yield RibbonEvent(step, epoch, at_s, "restart", "restart", detail, at)


def _changes(ribbon: Sequence[Bin], epoch: int, result: Mapping[str, Any]) -> Iterator[RibbonEvent]:
    """The onset of what costs most now, and every other change that is known of."""
    named = _leading(ribbon, epoch, result)
    if named is not None:
        yield named
    for change in _distinct(result.get("changes") or ()):
        is_named = named is not None and abs(change["step"] - named.step) <= _TOGETHER
        if is_named and change["ratio"] > 1:
            continue
        kind: EventKind = "onset" if change["ratio"] > 1 else "recovery"
        text, detail = _told(change)
        yield from _at(ribbon, epoch, change["step"], kind, text, detail)


def _leading(ribbon: Sequence[Bin], epoch: int, result: Mapping[str, Any]) -> RibbonEvent | None:
    finding = next(iter(result.get("findings") or ()), None)
    if finding is None or finding["onset_step"] is None:
        return None
    step = finding["onset_step"]
    detail = words.signs(words.contained(finding["sentence"]))
    found = _at(ribbon, epoch, step, "onset", f"slow since {words.whole(step)}", detail)
    return next(found, None)


def _distinct(changes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without the change of step time where some workers' own change explains it."""
    all_ = list(changes)
    of_workers = [each for each in all_ if each["what"] == "compute"]
    return of_workers + [
        each
        for each in all_
        if each["what"] != "compute" and not any(_same(each, other) for other in of_workers)
    ]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    is_near = abs(one["step"] - other["step"]) <= _TOGETHER
    return bool(is_near and (one["ratio"] > 1) == (other["ratio"] > 1))


def _told(change: Mapping[str, Any]) -> tuple[str, str]:
    ratio = change["ratio"]
    before, after = words.seconds(change["before_s"]), words.seconds(change["after_s"])
    if change["what"] != "compute":
        text = f"steps {words.ratio(ratio)}"
        return text, f"A step takes {after} instead of {before}"
    who = _who(change["culprits"])
    text = f"{who} {'slower' if ratio > 1 else 'recovered'}"
    return text, f"A computation of {who} takes {after} instead of {before}"


def _who(culprits: Sequence[Mapping[str, Any]]) -> str:
    if not culprits:
        return "all workers"
    first = culprits[0]
    if "dp_rank" in first and "stage" in first:
        name = words.worker(first["dp_rank"], first["stage"])
    elif "dp_rank" in first or "stage" in first:
        name = f"dp {first['dp_rank']}" if "dp_rank" in first else f"stage {first['stage']}"
    else:
        name = words.contained(str(first.get("host", "a worker")))
    return name if len(culprits) == 1 else f"{name} and {len(culprits) - 1} more"


def _alerts(ribbon: Sequence[Bin], alerts: Sequence[AlertEvent]) -> Iterator[RibbonEvent]:
    """Alerts that began, or ceased, to fire at the same window, once; the first one speaks."""
    together: dict[tuple[str, EventKind], list[AlertEvent]] = {}
    for alert in sorted(alerts, key=lambda each: each.at_s):
        if alert.detail.window_id is not None:
            kind: EventKind = "alert-firing" if alert.kind == "firing" else "alert-resolved"
            together.setdefault((alert.detail.window_id, kind), []).append(alert)
    for (window_id, kind), same in together.items():
        epoch, step = (int(number) for number in window_id.split("-"))
        number = "alert" if len(same) == 1 else words.counted(len(same), "alert")
        text = number if kind == "alert-firing" else f"{number} resolved"
        detail = words.contained(same[0].sentence)
        for found in _at(ribbon, epoch, step, kind, text, detail):
            yield RibbonEvent(step, epoch, same[0].at_s, kind, text, detail, found.bin)


def _skipped(ribbon: Sequence[Bin], skipped: Sequence[Skipped]) -> Iterator[RibbonEvent]:
    """Successive steps that were skipped for the same reason, once."""
    stretches: list[list[Skipped]] = []
    for each in skipped:
        before = stretches[-1][-1] if stretches else None
        goes_on = before is not None and (before.epoch, before.reason) == (each.epoch, each.reason)
        if before is not None and goes_on and each.step == before.step + 1:
            stretches[-1].append(each)
        else:
            stretches.append([each])
    for stretch in stretches:
        text = f"{words.counted(len(stretch), 'step')} skipped"
        detail = f"{text}: {words.contained(stretch[0].reason)}"
        yield from _at(ribbon, stretch[0].epoch, stretch[0].step, "skipped", text, detail)


def _at(
    ribbon: Sequence[Bin], epoch: int, step: int, kind: EventKind, text: str, detail: str
) -> Iterator[RibbonEvent]:
    for at, each in enumerate(ribbon):
        if each.has(epoch, step):
            windows = (w for w in each.windows if w.first_step <= step <= w.last_step)
            seen_s = next((window.updated_s for window in windows), None)
            yield RibbonEvent(step, epoch, seen_s, kind, text, detail, at)
            return
