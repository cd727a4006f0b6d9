"""The sentence that opens a comparison: how much slower or faster, and which cause is news."""

from collections.abc import Sequence

from app import words
from app.charts.compare_findings import Compared
from app.charts.compare_side import Side
from app.engine.metrics import gpu_time_wasted

# Closer than this two step times are the same: steps vary by as much from one to the next.
SAME = 0.01
# From here on the work of a step is not the same on both sides.
_OTHER_WORK = 0.03
_MOST_NAMED = 2

# In the singular, so that each "is" new or gone.
_CAUSES = {
    "slow-worker": "a slow worker",
    "late-host": "a late host",
    "stage-imbalance": "a long stage",
    "sequence-imbalance": "uneven sequence lengths",
    "gc-pause": "garbage collection",
    "slow-link": "a slow link",
    "flapping-link": "a flapping link",
    "data-loading": "slow data loading",
    "allocator-stall": "allocator stalling",
    "uniform-slowdown": "slowness of everything",
    "silent-worker": "a silent worker",
}


def compare_headline(a: Side, b: Side, found: Sequence[Compared]) -> tuple[str, str]:
    """The sentence about b, held against a, and the line under it."""
    if (a.job_id, a.result["window"]["id"]) == (b.job_id, b.result["window"]["id"]):
        return "Both sides are the same: nothing differs.", "Pick another window, run or job."
    for letter, side in (("A", a), ("B", b)):
        if (why := side.why_not_measured) is not None:
            return f"{letter} has no figures to compare.", f"{letter}: {why}."
    if a.is_low or b.is_low:
        return _recorded_only(a, b)
    return f"{_against(a, b)}{_news(found)}.", _work(a, b)


def change_s(a: Side, b: Side) -> float | None:
    """How much longer a recorded step takes on b, as a share of a's; None where that says nothing.

    Jobs of different shapes do different work in a step.
    """
    was_s, is_s = a.mean_s("recorded"), b.mean_s("recorded")
    if not was_s or is_s is None or a.shape != b.shape:
        return None
    return is_s / was_s - 1


def _against(a: Side, b: Side) -> str:
    ratios = f"{words.ratio(b.slowdown or 1)} against {words.ratio(a.slowdown or 1)}"
    change = change_s(a, b)
    if change is not None:
        return f"{ratios}: {_longer(change)}"
    lost, was_lost = (
        words.percent(max(0.0, gpu_time_wasted(side.slowdown or 1))) for side in (b, a)
    )
    return f"{ratios}: it loses {lost} of its GPU time against {was_lost}"


def _longer(change: float) -> str:
    if abs(change) < SAME:
        return "a step takes as long"
    return f"a step takes {words.percent(abs(change))} {'longer' if change > 0 else 'less time'}"


def _news(found: Sequence[Compared]) -> str:
    """The first two causes that came or went, and how many more."""
    news = [each for each in found if each.change != "same"]
    if not news:
        return "; the causes are the same" if found else ""
    named = [f"{_named(each)} is {each.change}" for each in news[:_MOST_NAMED]]
    more = len(news) - len(named)
    others = f", and {words.counted(more, 'more cause')} came or went" if more else ""
    return f"; {', '.join(named)}{others}"


def _named(cause: Compared) -> str:
    name = str(cause.finding["cause"])
    return _CAUSES.get(name, name.replace("-", " "))


def _recorded_only(a: Side, b: Side) -> tuple[str, str]:
    low = " and ".join(letter for letter, side in (("A", a), ("B", b)) if side.is_low)
    change = change_s(a, b)
    told = "Only recorded times can be compared" if change is None else _longer(change).capitalize()
    why = "The simulated steps are too far from the recorded ones to name a loss or a cause."
    return f"{told}: {low} has low fidelity.", why


def _work(a: Side, b: Side) -> str:
    """What a step takes on both sides, and whether its work is the same at all."""
    times = {kind: (a.mean_s(kind) or 0.0, b.mean_s(kind) or 0.0) for kind in ("recorded", "ideal")}
    told = (
        f"A step takes {words.seconds(times['recorded'][1])} against "
        f"{words.seconds(times['recorded'][0])}; without stragglers "
        f"{words.seconds(times['ideal'][1])} against {words.seconds(times['ideal'][0])}."
    )
    if a.shape != b.shape:
        return f"{told} The shapes differ, so the times tell little."
    before_s, after_s = times["ideal"]
    if before_s > 0 and abs(after_s / before_s - 1) >= _OTHER_WORK:
        moved = words.percent(abs(after_s / before_s - 1))
        how = "more" if after_s > before_s else "less"
        return f"{told} So {moved} {how} is no straggler's: the work or the speed of all changed."
    return told
