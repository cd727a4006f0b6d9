"""One of two things that are compared: a window, or several as one, of some job's run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SIZES = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size")


@dataclass(frozen=True, slots=True)
class Side:
    """A result (what-if model, section 7), and what its job has and is called."""

    job_id: str
    name: str
    num_gpus: int
    result: Mapping[str, Any]

    @property
    def slowdown(self) -> float | None:
        """None where no step was analysed."""
        value: float | None = self.result["slowdown"]
        return value

    @property
    def is_low(self) -> bool:
        """Whether the simulation is too far off for anything but recorded times to be told."""
        return bool((self.result.get("fidelity") or {}).get("verdict") == "low")

    @property
    def shape(self) -> dict[str, int]:
        """Sizes by axis; a step takes as much work only where they are equal."""
        return {name: self.result["job"].get(name, 1) for name in _SIZES}

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        """Causes found, none where none can be told."""
        return self.result.get("findings") or ()

    def mean_s(self, kind: str) -> float | None:
        """Mean seconds a step: `recorded`, `simulated` or `ideal`."""
        times = (self.result.get("step_time_s") or {}).get(kind) or ()
        return sum(times) / len(times) if times else None

    @property
    def why_not_measured(self) -> str | None:
        """Why there are no figures, None where there are some."""
        if self.slowdown is not None:
            return None
        skipped = self.result.get("skipped_steps") or ()
        if not skipped:
            return "no complete step has been analysed"
        first = skipped[0]
        return f"step {first['step']} was left out: {first['reason']}"
