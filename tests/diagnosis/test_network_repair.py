"""What operations take without a slow card, and receives that are posted late."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from typing_extensions import override

from app.diagnosis.detectors.link import SlowLink
from app.diagnosis.network.repair import late_posts, slow_transfers
from app.diagnosis.network.suspects import network_suspects
from app.diagnosis.suspicions import suspicion_costs
from app.result.finding import Culprit
from app.synth.cluster import RngOf, World
from app.synth.drawing import DrawnSteps
from app.synth.faults.fault import Fault, FaultSteps
from app.synth.faults.slow_network import FlappingNic, SlowNic
from app.synth.faults.slow_network import SlowLink as LinkFault
from app.trace.ops import OP_CODES
from app.trace.window import Floats
from tests.diagnosis.long_collectives import LongCollective
from tests.diagnosis.suspects import job, suspected
from tests.diagnosis.windows import case_of

EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
NUM_STEPS = 16


@dataclass(frozen=True, slots=True)
class LatePosts(Fault):
    """Receives of a stage are posted late, all the time."""

    name = "late-posts"
    cause = None

    stage: int
    seconds: float

    @override
    def check(self, world: World) -> None:
        """Nothing to check."""

    @override
    def change(self, drawn: DrawnSteps, world: World, lasts: Floats, rng_of: RngOf) -> None:
        drawn.p2p_delay_s["forward-recv"][self.stage] += self.seconds

    @override
    def culprits(self, world: World) -> tuple[Culprit, ...]:
        return ()


def shown(*faults, **about):
    """The case of a job's first steps."""
    return case_of(job(*faults, **about).record(range(NUM_STEPS)).window())


def blamed(case, optype):
    """Expected over recorded seconds of the repaired operations of a type, by (dp rank, step)."""
    [ops] = slow_transfers(network_suspects(case)).values()
    [group] = case.groups
    mine = group.replayer.template.optype[ops.row] == OP_CODES[optype]
    recorded_s = group.replayer.durations.recorded_s[ops.row[mine], ops.lane[mine]]
    dp_rank, step = np.divmod(ops.lane[mine], len(group.steps))
    shares = ops.seconds[mine] / recorded_s
    return dict(zip(zip(dp_rank.tolist(), step.tolist(), strict=True), shares, strict=True))


def test_embeddings_of_the_slow_cards_replica_take_as_long_as_those_of_others():
    found = blamed(shown(SlowNic(1, 0, 8.0), LongCollective(EMBEDDING, 8.0, 1)), EMBEDDING)
    assert set(found) == {(1, step) for step in range(NUM_STEPS)}
    assert np.median(list(found.values())) == pytest.approx(1 / 8, rel=0.1)


def test_collectives_that_take_as_long_as_ever_are_not_repaired():
    assert blamed(shown(SlowNic(1, 0, 8.0)), EMBEDDING) == {}
    assert blamed(shown(LinkFault(1, 1, 8.0)), CLIP) == {}
    assert blamed(shown(FlappingNic(1, 1, 20.0, rate=0.5)), CLIP) == {}


def test_clip_of_a_card_that_was_always_slow_is_as_much_slower_as_its_transfers():
    found = blamed(shown(SlowNic(1, 1, 8.0), LongCollective(CLIP, 8.0)), CLIP)
    assert len(found) == 4 * NUM_STEPS
    assert np.median(list(found.values())) == pytest.approx(1 / 8, rel=0.1)


def test_clip_of_a_card_slow_since_a_step_takes_as_long_as_before_it():
    late = FaultSteps(8)
    faults = SlowNic(1, 1, 8.0, when=late), LongCollective(CLIP, 5.0, when=late)
    found = blamed(shown(*faults), CLIP)
    assert {step for _, step in found} == set(range(8, NUM_STEPS))
    assert np.median(list(found.values())) == pytest.approx(1 / 5, rel=0.1)


def test_cost_of_a_card_includes_the_collectives_that_it_slows():
    with_clip = shown(SlowNic(1, 1, 8.0), LongCollective(CLIP, 60.0, when=FaultSteps(1)))
    without = shown(SlowNic(1, 1, 8.0))
    costs = []
    for case in (with_clip, without):
        found = suspected(SlowLink(), case)
        costs.append(suspicion_costs(case, [found]).of(0) or 0.0)
    assert costs[0] > 1.02 * costs[1] > 0


def test_transfers_posted_in_time_have_no_delay():
    case = shown(LinkFault(1, 1, 8.0))
    [ops] = late_posts(network_suspects(case)).values()
    [group] = case.groups
    assert ops.seconds.max(initial=0.0) < 0.01 * group.replayer.simulated_s.mean()
    found = suspected(SlowLink(), case)
    assert found.delays is None


def test_late_posts_make_the_replay_as_long_as_the_record():
    # The other receives of the stage are late too, but short transfers hide it.
    case = shown(LinkFault(0, 0, 20.0), LatePosts(1, 0.05), dp=2, pp=2, microbatches=6)
    found = suspected(SlowLink(), case)
    assert found.culprits[0].dp_rank == 0
    assert found.delays is not None
    cost, recorded_s = suspicion_costs(case, [found]), case.report.recorded_s.mean()
    assert case.replay.simulated_s.mean() < 0.95 * recorded_s
    assert cost.blamed_s.mean() == pytest.approx(recorded_s, rel=0.02)
    plain = replace(found, delays=None)
    assert cost.repaired_s[0] == pytest.approx(suspicion_costs(case, [plain]).repaired_s[0])
