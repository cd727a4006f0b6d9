"""What an alert costs, and how sure the cause is: it follows the sentence that says what it is."""

from app import words
from app.alerts.alert import Blame, Detail


def sub(detail: Detail) -> str:
    """What it costs per hour, and how sure the cause is; empty if neither is known."""
    if detail.on == "stalled":
        return f"It has ended, hangs or lost its network.{_cost(detail, 'It costs')}"
    if detail.on == "silent-worker":
        return (
            "No step is complete without every worker: there are no figures meanwhile, and what it "
            "costs is not measured."
        )
    if detail.on == "low-fidelity":
        return "Naming a worker or a stage would be a guess."
    cost = _cost(detail, "It costs")
    return f"{cost}{_beside_slowdown(detail)}{_how_sure(detail.blame)}".strip()


def sub_of_end(was: Detail) -> str:
    """Of an alert that is over, what it had cost as it was last told."""
    if was.on == "silent-worker":
        return "What it had cost is not measured."
    return _cost(was, "It had cost").strip()


def _cost(detail: Detail, begins: str) -> str:
    lost, num_gpus = detail.gpu_hours_lost_per_hour, detail.num_gpus
    if lost is None or not num_gpus:
        return ""
    share, gpus = words.percent(lost / num_gpus), words.counted(num_gpus, "GPU")
    return f" {begins} {words.gpu_hours(lost)} an hour, {share} of the time of {gpus}."


def _beside_slowdown(detail: Detail) -> str:
    """Why a cause costs more than the whole job is slowed down: elsewhere both figures are told."""
    slowdown, wasted = detail.slowdown, detail.gpu_time_wasted
    if detail.on != "cause" or slowdown is None or wasted is None or detail.value is None:
        return ""
    if words.percent(detail.value) == words.percent(wasted) or detail.value < wasted:
        return ""
    return (
        f" That is by steps replayed without it: the slowdown of {words.ratio(slowdown)}, which "
        f"only compares workers with each other, accounts for {words.percent(wasted)}."
    )


def _how_sure(blame: Blame | None) -> str:
    if blame is None:
        return ""
    return f" The cause, {blame.cause}, is {words.percent(blame.confidence)} sure."
