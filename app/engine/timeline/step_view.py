"""One step of one replica, recorded and ideal, with the chain that decided how long it took."""

from dataclasses import dataclass, replace
from functools import cached_property

from app.engine.critical_path import CriticalPath, of_run
from app.engine.replays import WindowReplay
from app.engine.run import Run, play
from app.engine.timeline.lanes import length_s
from app.engine.what_if import Replayer
from app.errors import InvalidRequest


@dataclass(frozen=True)
class StepView:
    """The step as recorded and as it would be without stragglers."""

    replayer: Replayer
    step: int
    dp_rank: int
    recorded: Run
    ideal: Run
    path: CriticalPath

    @cached_property
    def recorded_s(self) -> float:
        """From the first operation of all workers to the end of the last."""
        return length_s(self.recorded)

    @cached_property
    def ideal_s(self) -> float:
        """To the end of the last optimizer, every operation ideal."""
        return length_s(self.ideal)

    @property
    def size_bytes(self) -> int:
        """Memory that its times take."""
        columns = ("start_s", "met_s", "end_s")
        runs = (self.recorded, self.ideal)
        return sum(int(getattr(run, name).nbytes) for run in runs for name in columns)

    def of(self, dp_rank: int | None) -> "StepView":
        """The same step of another replica; of this one where none is named.

        Raises:
            InvalidRequest: the job has no such dp rank.
        """
        if dp_rank is None:
            return self
        if dp_rank >= self.replayer.dp_size:
            last = self.replayer.dp_size - 1
            raise InvalidRequest(f"dp {dp_rank}: this job has dp ranks 0 to {last}")
        return replace(self, dp_rank=dp_rank)

    @property
    def lost_s(self) -> float:
        """What the step would be shorter by; below 0 where it was faster than its ideal."""
        return self.recorded_s - self.ideal_s


def step_view(replay: WindowReplay, step: int) -> StepView:
    """A step, of the replica that held it up longest.

    Raises:
        InvalidRequest: the window does not have the step.
    """
    replayer = replay.of_step(step)
    recorded, ideal = play(replayer, step, "recorded"), play(replayer, step, "ideal")
    path = of_run(recorded, replayer.grid.rank)
    return StepView(replayer, step, _holding_up(path), recorded, ideal, path)


def _holding_up(path: CriticalPath) -> int:
    """The dp rank on which the chain spends most time, the lowest of them."""
    shares: dict[int, float] = {}
    for (dp_rank, _, _), share in path.worker_shares.items():
        shares[dp_rank] = shares.get(dp_rank, 0.0) + share
    return min(shares, key=lambda dp_rank: (-shares[dp_rank], dp_rank))
