"""An alert in one sentence or two of plain English; it names no cause."""

from app.alerts.alert import Alert, WorstWorker


def sentence(alert: Alert) -> str:
    """The fact, then the cost."""
    transition, name = alert.transition, alert.job_name
    ratio = _times(transition.slowdown)
    if transition.job_ended:
        return f"{name} has ended. It last ran at {ratio} of its ideal."
    if transition.kind == "resolved":
        return f"{name} runs at {ratio} of its ideal again, since step {transition.since_step:,}."
    windows = "1 window" if transition.num_windows == 1 else f"{transition.num_windows} windows"
    wasted = gpu_time_wasted(transition.slowdown)
    return (
        f"{name} runs at {ratio} of its ideal for {windows}, since step "
        f"{transition.since_step:,}. It loses {100 * wasted:.0f} % of its GPU time"
        f"{_worst(alert.worst_worker, transition.slowdown)}."
    )


def gpu_time_wasted(slowdown: float) -> float:
    """Share of the GPU time that a run without stragglers would not need: 1 - 1/S."""
    return 1.0 - 1.0 / slowdown


def _worst(worker: WorstWorker | None, slowdown: float) -> str:
    # A worker that explains less than half of the loss is one among many: naming it would send
    # somebody to the wrong machine.
    if worker is None or worker.slowdown - 1.0 < (slowdown - 1.0) / 2:
        return ""
    host = f" on {worker.host}" if worker.host else ""
    place = f"dp {worker.dp_rank}, stage {worker.stage}{host}"
    return f"; {place} alone accounts for {_times(worker.slowdown)}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}\N{MULTIPLICATION SIGN}"
