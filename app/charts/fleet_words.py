"""Causes and GPU-hours in few words, as the fleet's sentences and labels have them."""

from app import words

# As in frontend/js/words.js, in lower case.
_CAUSES = {
    "slow-worker": "slow worker",
    "late-host": "late host",
    "stage-imbalance": "long stage",
    "sequence-imbalance": "sequence lengths",
    "gc-pause": "garbage collection",
    "slow-link": "slow link",
    "flapping-link": "flapping link",
    "data-loading": "data loading",
    "allocator-stall": "allocator stalls",
    "uniform-slowdown": "everything is slower",
    "silent-worker": "silent worker",
    "not-explained": "not explained",
}


def cause(name: str, *, is_last_stage: bool = False) -> str:
    """A cause in lower case, as a chip has it; `is_last_stage` where its only culprit is that."""
    if name == "stage-imbalance" and is_last_stage:
        return "long last stage"
    return _CAUSES.get(name, name.replace("-", " "))


def hours(value: float) -> str:
    """A number of GPU-hours as roughly as it is known."""
    return f"{value:.1f}" if abs(value) < 9.95 else words.whole(round(value))
