"""The two sentences that open the page of one step."""

from app import words
from app.charts.timeline import sentence
from app.engine.chain import Link
from app.engine.metrics import MAX_DISCREPANCY
from app.engine.timeline.lanes import activity_of, waiting_share
from app.engine.timeline.step_view import StepView
from app.words import Hosts

# A pause between computations that is no pause: a share of their time.
_NO_PAUSE = 0.01
_WORTH_TELLING = 0.05
_MAX_NAMED = 3
_PASSES = ("forward", "backward")


def step_story(view: StepView, hosts: Hosts | None = None) -> tuple[str, str]:
    """What a step took, and what its critical path says of why."""
    (dp_rank, stage, _), share = next(iter(view.path.worker_shares.items()))
    who = words.worker(dp_rank, stage, hosts)
    links = [link for link in view.path.links if (link.dp_rank, link.stage) == (dp_rank, stage)]
    computed = _computed(view, links)
    # The time of these alone, as in the chart of the path's parts; launches are told apart.
    own_s = sum(link.own_s for link in computed) or share * view.path.length_s
    told = (
        f"The critical path runs through {who} for {words.seconds(own_s)}"
        f"{_computations(computed)}{_others(view, dp_rank, stage)}."
    )
    return sentence(view), " ".join([told, *_elsewhere(view), *_launches(view), *_doubt(view)])


def _computed(view: StepView, links: list[Link]) -> list[Link]:
    """The forward and backward computations among them."""
    types = view.recorded.template.op_types
    of_type = {link.optype: types.by_code[types.codes[link.optype]] for link in links}
    return [link for link in links if activity_of(of_type[link.optype]) in _PASSES]


def _computations(computed: list[Link]) -> str:
    if not computed:
        return ""
    own_s, gap_s = (sum(getattr(link, name) for link in computed) for name in ("own_s", "gap_s"))
    follow = " without a pause" if len(computed) > 1 and gap_s < _NO_PAUSE * own_s else ""
    return f", {words.counted(len(computed), 'computation')}{follow}"


def _others(view: StepView, dp_rank: int, stage: int) -> str:
    share = waiting_share(view.recorded, view.dp_rank)
    is_here = view.dp_rank == dp_rank
    others = [part for other, part in enumerate(share) if other != stage or not is_here]
    if not others:
        return ""
    low, high = words.percent(min(others)), words.percent(max(others))
    how_much = low if low == high else f"{low.removesuffix(' %')} to {high}"
    name = f"stage {1 - stage} waits" if len(others) == 1 else "the other stages wait"
    name = name if is_here else f"dp {view.dp_rank} waits"
    return f", while {name} {how_much} of the step"


def _elsewhere(view: StepView) -> list[str]:
    """That some of the path cannot be seen here, since it is on other replicas."""
    on_path = sorted({dp_rank for dp_rank, _, _ in view.path.worker_shares} - {view.dp_rank})
    if not on_path:
        return []
    shown = [f"dp {dp_rank}" for dp_rank in on_path[:_MAX_NAMED]]
    more = len(on_path) - len(shown)
    where = [*shown, words.counted(more, "other")] if more else shown
    listed = where[0] if len(where) == 1 else f"{', '.join(where[:-1])} and {where[-1]}"
    return [f"It also goes through {listed}."]


def _launches(view: StepView) -> list[str]:
    share = view.path.waiting_share
    if share < _WORTH_TELLING:
        return []
    return [
        f"For {words.percent(share)} of the path nothing was launched though it could have been."
    ]


def _doubt(view: StepView) -> list[str]:
    replayer = view.replayer
    simulated_s = float(replayer.simulated_s[replayer.steps.index(view.step)])
    off = abs(simulated_s - view.recorded_s) / view.recorded_s if view.recorded_s else 0.0
    if off <= MAX_DISCREPANCY:
        return []
    limit = words.percent(MAX_DISCREPANCY)
    return [f"The simulated step is {words.percent(off)} off, over the limit of {limit}."]
