"""Plans of a step of a simulated job, and their playback into a recording."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, Axis, OpKind, OpTypes
from app.trace.window import Window
from tests import window_factory
from tests.reference import Node, meetings_in_order
from tests.reference_ops import Dependencies, Key
from tests.window_factory import Row

# All times are multiples of this, so that sums are exact and equal times stay equal.
TICK_S = 2.0**-16

# Longer than every tolerance (50 us), so that launches inside are detected as inside.
CLEARLY_TICKS = 8


@dataclass
class Plan:
    """Operations with their true dependencies, independent of the replay rules."""

    sizes: Parallelism
    types: OpTypes = BUILT_IN
    row: dict[Key, Row] = field(default_factory=dict)
    found: Dependencies = field(default_factory=Dependencies)
    last_on: dict[tuple[int, str], Key] = field(default_factory=dict)
    strays: set[Key] = field(default_factory=set)

    def add(
        self,
        optype: str,
        stage: int,
        *,
        after: Iterable[Key] = (),
        within: tuple[Key, float] | None = None,
        mc: int = -1,
        mb_id: int = -1,
        stream: str | None = None,
    ) -> Key:
        """One more operation: the next on its stream, which may begin after and within others."""
        seq_id = sum(key.stage == stage and key.optype == optype for key in self.row)
        key = Key(stage, optype, seq_id)
        stream = self._spec(key).stream if stream is None else stream
        before = {
            *after,
            *([self.last_on[stage, stream]] if (stage, stream) in self.last_on else []),
        }
        if stream:
            self.last_on[stage, stream] = key
        self.row[key] = Row(optype, stage=stage, seq_id=seq_id, mc=mc, mb_id=mb_id)
        self.found.waits_for[key] = before
        self.found.shares[key] = {within} if within else set()
        return key

    def _spec(self, key: Key):
        return self.types.by_code[self.types.codes[key.optype]]

    def is_compute(self, key: Key) -> bool:
        return self._spec(key).kind is OpKind.COMPUTE

    def meet_over_stages(self) -> None:
        """Let operations of one type and number end together across stages."""
        meeting: dict[tuple[str, int], list[Key]] = {}
        for key in self.row:
            if self._spec(key).axis in (Axis.STAGES, Axis.DP_AND_STAGES):
                meeting.setdefault((key.optype, key.seq_id), []).append(key)
        self.found.groups += [tuple(keys) for keys in meeting.values()]

    def in_order(self) -> list[list[Node]]:
        axes = {key.optype: self._spec(key).axis for key in self.row}
        return meetings_in_order(self.found, axes, self.sizes)


class Unsteady:
    """Durations and launch delays of every size, 0 among them; clocks that disagree."""

    def __init__(self, chance: random.Random, largest_skew_s: float) -> None:
        self.chance, self.largest_skew = chance, round(largest_skew_s / TICK_S)

    def delay(self) -> int:
        """Ticks; never 0, so that operations of one stream start one after the other."""
        return self.chance.choice([1, 1, 2, 1000, 30_000])

    def own(self, plan: Plan, key: Key) -> int:
        """Ticks of an operation without waiting."""
        chance = self.chance
        ticks = chance.choice([0, 1, chance.randint(0, 20_000), chance.randint(0, 200_000)])
        if key.optype == "optimizer":
            return ticks + 2**16  # no clock is so wrong that a step would take no time
        return max(ticks, CLEARLY_TICKS) if "ward" in key.optype and plan.is_compute(key) else ticks

    def skew(self) -> int:
        return self.chance.randint(-self.largest_skew, self.largest_skew)


class Steady:
    """Nearly equal durations, no launch delays, and equal clocks."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.usual = chance, dict[Key, int]()

    def delay(self) -> int:
        return 0

    def own(self, plan: Plan, key: Key) -> int:
        largest = 65_536 if plan.is_compute(key) else 16_384
        usual = self.usual.setdefault(key, self.chance.randint(largest // 2, largest))
        return usual + self.chance.randint(0, usual // 512)

    def skew(self) -> int:
        return 0


Times = Unsteady | Steady


def play(plan: Plan, meetings: list[list[Node]], step: int, times: Times) -> list[Row]:
    """One step as recorded by its workers."""
    start: dict[Node, int] = {}
    end: dict[Node, int] = {}
    for nodes in meetings:
        for dp_rank, key in nodes:
            ready = [end[dp_rank, before] for before in plan.found.waits_for[key]]
            for whole, share in plan.found.shares[key]:
                node = dp_rank, whole
                ready.append(start[node] + round(share * (end[node] - start[node])))
            start[dp_rank, key] = max(ready, default=0) + _delay(plan, key, times)
        met = max(start[node] for node in nodes)
        for node in nodes:
            end[node] = met + (0 if node[1] in plan.strays else times.own(plan, node[1]))
    skew = {(d, key.stage): 0 for d, key in start}
    skew = {place: times.skew() for place in skew}
    return [
        plan.row[key].on(
            dp_rank=dp_rank,
            step=step,
            start_s=(start[dp_rank, key] + skew[dp_rank, key.stage]) * TICK_S,
            duration_s=(end[dp_rank, key] - start[dp_rank, key]) * TICK_S,
        )
        for dp_rank, key in start
    ]


def _delay(plan: Plan, key: Key, times: Times) -> int:
    return 1 if key in plan.strays else times.delay()


def record(plans: list[Plan], times: Times, chance: random.Random) -> Window:
    """Recording of the job's workers, one step of each plan."""
    rows: list[Row] = []
    for position, plan in enumerate(plans):
        rows += play(plan, plan.in_order(), 10 + position, times)
    chance.shuffle(rows)
    sizes = plans[0].sizes
    return window_factory.window(
        rows,
        dp_size=sizes.dp_size,
        pp_size=sizes.pp_size,
        vpp_size=sizes.vpp_size,
        dsp_size=sizes.dsp_size,
        ep_size=sizes.ep_size,
        op_types=plans[0].types,
    )
