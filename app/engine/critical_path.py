"""Which operations, one after the other, decided how long a step took?"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from app.engine.chain import Link, chain_to
from app.engine.replays import WindowReplay
from app.engine.run import Run, RunKind, play
from app.trace.window import Ints


@dataclass(frozen=True)
class CriticalPath:
    """The chain in the order of time.

    All own times and gaps together are `length_s`, from the step's beginning to the end of its
    last optimizer.
    """

    step: int
    kind: RunKind
    length_s: float
    links: tuple[Link, ...]

    @cached_property
    def group_shares(self) -> dict[str, float]:
        """Share of the length that operations of a type took, largest first; without waiting."""
        return self._shares([(link.group, link.own_s) for link in self.links])

    @cached_property
    def worker_shares(self) -> dict[tuple[int, int, int], float]:
        """Share of the length that the chain spent on a worker, its waiting included.

        Largest first, by dp rank, stage and global rank; they are 1 together.
        """
        return self._shares([(link.worker, link.own_s + link.gap_s) for link in self.links])

    @cached_property
    def waiting_share(self) -> float:
        """Share of the length in which nothing of the chain ran; 1 with those by type."""
        return self._share(sum(link.gap_s for link in self.links))

    def _shares(self, parts: list[tuple[Any, float]]) -> dict[Any, float]:
        seconds: dict[Any, float] = defaultdict(float)
        for key, part_s in parts:
            seconds[key] += part_s
        largest_first = sorted(seconds.items(), key=lambda item: -item[1])
        return {key: self._share(part_s) for key, part_s in largest_first}

    def _share(self, part_s: float) -> float:
        return part_s / self.length_s if self.length_s else 0.0


def critical_path(replay: WindowReplay, step: int, kind: RunKind) -> CriticalPath:
    """The chain of operations that decided how long a step took.

    Raises:
        InvalidRequest: the window does not have the step, or it cannot be replayed.
    """
    replayer = replay.of_step(step)
    return of_run(play(replayer, step, kind), replayer.grid.rank)


def of_run(run: Run, rank: Ints) -> CriticalPath:
    """The chain of one run; `rank` [dp, pp] are the global ranks of the workers."""
    ends_s = np.where(run.graph.is_last[: run.graph.num_ops, None], run.end_s, -np.inf)
    op, dp_rank = (int(place) for place in np.unravel_index(ends_s.argmax(), ends_s.shape))
    length_s = float(ends_s[op, dp_rank])
    return CriticalPath(run.step, run.kind, length_s, chain_to(run, rank, op, dp_rank))


def as_json(path: CriticalPath) -> dict[str, Any]:
    """The chain as `paceline critical-path --json` writes it and the API answers it."""
    return {
        "step": path.step,
        "run": path.kind,
        "length_s": path.length_s,
        "shares": {
            "by_optype": path.group_shares,
            "waiting": path.waiting_share,
            "by_worker": [
                {"dp_rank": dp_rank, "stage": stage, "rank": rank, "share": share}
                for (dp_rank, stage, rank), share in path.worker_shares.items()
            ],
        },
        "links": [
            {name: getattr(link, name) for name in Link.__slots__ if name != "group"}
            for link in path.links
        ],
    }
