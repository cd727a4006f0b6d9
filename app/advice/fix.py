"""The input of a fix (`AdviceCase`) and its answer: `Fix`, or why it is `NotOffered`.

A prediction replays the job with the fix: the speed-up is T / T_new, both simulated, so launch
delays are in neither.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from app.advice.change import Change, mean_step_s
from app.advice.facts import Facts
from app.advice.rebuilt_pipeline import RebuiltPipeline, rebuilt_pipeline
from app.advice.recorded_pipeline import NotRebuilt
from app.diagnosis.diagnose import diagnose
from app.diagnosis.job_history import History
from app.diagnosis.repair import Repair
from app.engine.replays import WindowReplay
from app.engine.report import analyse_replay
from app.result.figures import MAX_DISCREPANCY
from app.result.finding import Finding
from app.result.window_result import WindowResult

# A fix that wins less is within the noise of a prediction, and not worth a restart.
MIN_SPEED_UP = 1.01


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Minutes since the onset of a cause, or since the window began where that was earlier.

    More where they are `is_at_least`.
    """

    minutes: float
    is_at_least: bool = False


@dataclass(frozen=True, slots=True)
class Paste:
    """Text to paste, and what it is for."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Need:
    """Something not known that would make a fix possible or complete.

    `fact` is its name in `facts_of`, where its owner can give it; None where only the record can.
    """

    text: str
    fact: str | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix with its prediction.

    `step_s` is the predicted mean step in seconds, `step_range_s` its bounds; `before_s` is T.
    `cause` is that of the finding that it removes, None where it removes none. `change` is what the
    fix does to the job, for simulations of several fixes together. `needs` are
    facts that would make the fix complete. `stops_job` says whether it takes a restart, which
    costs `stop_minutes`. `microbatches` are those of a replica's step with the fix, None where it
    leaves their number. `elapsed` is the time since the cause's onset, None without a cause.
    """

    name: str
    title: str
    before_s: float
    step_s: float
    step_range_s: tuple[float, float]
    num_gpus: int
    confidence: float
    risk: str
    change: Change
    cause: str | None = None
    paste: tuple[Paste, ...] = ()
    needs: tuple[Need, ...] = ()
    stop_minutes: float | None = None
    elapsed: Elapsed | None = None
    microbatches: int | None = None
    stops_job: bool = True

    @property
    def speed_up(self) -> float:
        """T / T_new."""
        return self.before_s / self.step_s

    def with_error(self, share: float, step_error_s: float) -> "Fix":
        """The fix with a wider range: by a share of the gain, and by the error of a mean step."""
        error_s = share * abs(self.before_s - self.step_s)
        error_s += step_error_s * self.step_s / self.before_s
        fastest_s, slowest_s = self.step_range_s
        return replace(self, step_range_s=(max(0.0, fastest_s - error_s), slowest_s + error_s))

    @property
    def gpu_hours_per_day(self) -> float:
        """GPU-hours that a day of training needs less, 24 x GPUs x (1 - T_new / T)."""
        return self._saved_hours(self.step_s)

    @property
    def gpu_hours_per_day_range(self) -> tuple[float, float]:
        """Bounds of the GPU-hours a day, the lower one first."""
        fastest_s, slowest_s = self.step_range_s
        return self._saved_hours(slowest_s), self._saved_hours(fastest_s)

    def _saved_hours(self, step_s: float) -> float:
        return 24.0 * self.num_gpus * (1 - step_s / self.before_s)

    @property
    def pays_after_minutes(self) -> float | None:
        """Minutes of training after which the fix has won back its stop; None if not known.

        The same number of minutes of lost time since the onset justifies the stop now, by ski
        rental: acting then costs at most twice what the best decision would have cost.
        """
        if not self.stops_job:
            return 0.0
        won = 1 - self.step_s / self.before_s
        return None if self.stop_minutes is None or won <= 0 else self.stop_minutes / won

    @property
    def lost_minutes(self) -> float | None:
        """Minutes that the fix would have saved since the cause's onset, or at least."""
        if self.elapsed is None:
            return None
        return self.elapsed.minutes * max(0.0, 1 - self.step_s / self.before_s)

    @property
    def lost_is_at_least(self) -> bool:
        """Whether more was lost, as the cause began before the record."""
        return self.elapsed is not None and self.elapsed.is_at_least

    @property
    def pays_now(self) -> bool | None:
        """Whether as much was lost as the fix costs, by ski rental; None if not known."""
        if not self.stops_job:
            return True
        lost = self.lost_minutes
        if self.stop_minutes is None or lost is None:
            return None
        if lost >= self.stop_minutes:
            return True
        return None if self.lost_is_at_least else False


@dataclass(frozen=True, slots=True)
class NotOffered:
    """A fix that is not advised here, with the reason; `needs` would change that."""

    name: str
    reason: str
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class AdviceCase:
    """One analysed window: its replay, its result (with findings) and the owner's facts.

    `known_repairs` are those of the diagnosis that made the findings; without them the window is
    diagnosed once more where a fix asks for one.
    """

    replay: WindowReplay
    result: WindowResult
    facts: Facts = field(default_factory=Facts)
    known_repairs: Mapping[str, Repair] | None = None

    @cached_property
    def step_s(self) -> float:
        """T, seconds: mean simulated step time."""
        return float(self.replay.simulated_s.mean())

    @cached_property
    def num_gpus(self) -> int:
        """GPUs of the job."""
        return self.replay.window.job.num_gpus

    @property
    def discrepancy(self) -> float:
        """Discrepancy of the replay; where it is not known, all advice is withheld."""
        return self.result.fidelity.discrepancy or 0.0

    def findings(self, *causes: str) -> list[Finding]:
        """Findings of these causes, the most costly first; none where the verdict is withheld."""
        return [finding for finding in self.result.findings or () if finding.cause in causes]

    def step_s_with(self, *changes: Change) -> float:
        """Seconds, the mean step with these changes together; raises InvalidRequest."""
        return mean_step_s(self.replay, changes)

    def repair(self, cause: str) -> Repair | None:
        """Durations without a detected cause; None where the cause has nothing to replay."""
        return self._repairs.get(cause)

    @cached_property
    def _repairs(self) -> Mapping[str, Repair]:
        if self.known_repairs is not None:
            return self.known_repairs
        return diagnose(self.replay, analyse_replay(self.replay), History()).repairs

    @cached_property
    def pipeline(self) -> RebuiltPipeline | NotRebuilt:
        """The job as it can be simulated with another pipeline, or why it cannot."""
        return rebuilt_pipeline(self.replay.groups)

    def since_onset(self, finding: Finding) -> Elapsed:
        """Time that the finding has lasted; without an onset it began earlier, so at least that.

        Gains are of the window's mean step, healthy ones included, so at least the whole window
        counts.
        """
        steps, onset = self.replay.steps, finding.onset_step
        first = steps[0] if onset is None else min(onset, steps[0])
        seconds = (steps[-1] + 1 - first) * float(self.replay.recorded_s.mean())
        return Elapsed(seconds / 60, is_at_least=onset is None)

    @cached_property
    def step_error_s(self) -> float:
        """Seconds: two standard errors of the mean simulated step, as steps differ."""
        simulated_s = self.replay.simulated_s
        if simulated_s.size < 2:
            return 0.0
        return 2 * float(simulated_s.std(ddof=1)) / float(np.sqrt(simulated_s.size))

    def fix(
        self,
        name: str,
        title: str,
        *,
        step_s: float,
        step_range_s: tuple[float, float],
        change: Change,
        risk: str,
        finding: Finding | None = None,
        certainty: float = 1.0,
        paste: tuple[Paste, ...] = (),
        needs: tuple[Need, ...] = (),
        microbatches: int | None = None,
    ) -> Fix:
        """A fix of this job that removes `finding`, if any; see `Fix`.

        Its confidence, 0..1, is that of the finding times `certainty`, and less where the replay is
        far off: half at the limit of fidelity.
        """
        confidence = certainty * (1.0 if finding is None else finding.confidence)
        return Fix(
            name=name,
            title=title,
            before_s=self.step_s,
            step_s=step_s,
            step_range_s=step_range_s,
            num_gpus=self.num_gpus,
            confidence=confidence * max(0.0, 1 - 0.5 * self.discrepancy / MAX_DISCREPANCY),
            risk=risk,
            change=change,
            cause=None if finding is None else finding.cause,
            paste=paste,
            needs=needs,
            stop_minutes=self.facts.stop_minutes,
            elapsed=None if finding is None else self.since_onset(finding),
            microbatches=microbatches,
        )

    def restart_needs(self) -> tuple[Need, ...]:
        """Facts that are needed to say when a restart pays, as far as not known."""
        needs = []
        if self.facts.restart_minutes is None:
            text = "minutes that a restart takes until the next step"
            needs.append(Need(text, "restart_minutes"))
        if self.facts.interval_minutes is None:
            needs.append(Need("minutes between two checkpoints", "checkpoint_minutes"))
        return tuple(needs)


@dataclass(frozen=True, slots=True)
class Method:
    """One fix: its name, the causes that it removes, and how it is predicted.

    A method without causes looks for a gain in any job.
    """

    name: str
    causes: tuple[str, ...]
    predict: Callable[[AdviceCase], Fix | NotOffered]
