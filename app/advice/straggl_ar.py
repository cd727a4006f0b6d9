"""Fix: StragglAR, an all-reduce that the other ranks begin while they wait for the last one.

The others reduce-scatter among themselves during the delay; then n - 2 + log2 n exchanges follow
instead of the 2 (n - 1) of a ring. Predicted by the simulated step in which each all-reduce takes
its recorded time, multiplied by the ratio of both by the model (app/advice/all_reduce.py). The
delay is that of the simulated step, so nothing is won beside a fix that removes it.
Source: Devraj et al., arXiv 2505.23523.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.advice.all_reduce import Measured, Network, fit_network
from app.advice.change import Change, ChangedDurations
from app.advice.commands import FORCE_RING, RECORD_COLLECTIVES
from app.advice.fix import AdviceCase, Fix, Need, NotOffered, Paste
from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.what_if import RECORDED, Replayer, ends
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints

# DDP reduces its buckets under this name as well: an all-reduce where nothing is gathered again.
_SCATTER, _GATHER = "grads-reduce-scatter", "params-all-gather"


class Key(NamedTuple):
    """Stage, op type's code and number of an operation: the same in all groups of steps."""

    stage: int
    code: int
    seq_id: int


def is_sharded(template: Template) -> bool:
    """Whether gradients are reduce-scattered, as with ZeRO and FSDP: parameters are gathered."""
    return _GATHER in template.type_names


def gradient_all_reduces(template: Template) -> Ints:
    """[rows], the operations that all-reduce gradients over the dp ranks of a stage."""
    names = {
        spec.name
        for spec in (template.op_types.by_code[code] for code in template.present)
        if spec.kind is OpKind.COLLECTIVE
        and spec.axis is Axis.DP
        and (spec.name.endswith("all-reduce") or spec.name == _SCATTER)
    }
    if is_sharded(template):
        names.discard(_SCATTER)
    flags = template.op_types.flags(lambda spec: spec.name in names)
    return np.flatnonzero(flags[template.optype])


def arrivals_s(group: Replayer, rows: Ints) -> Floats:
    """[rows, dp, steps], seconds in the simulated step: when each rank's last predecessor ends."""
    graph = group.graph
    recorded = np.full(graph.num_rows, RECORDED, np.int32)
    end_s = ends(graph, group.durations, recorded, group.peers)
    arrival_s = np.zeros((rows.size, end_s.shape[1]))
    for at, row in enumerate(rows.tolist()):
        before = graph.preds[graph.pred_ptr[row] : graph.pred_ptr[row + 1]]
        if before.size:
            arrival_s[at] = end_s[before].max(axis=0)
    return arrival_s.reshape(rows.size, group.dp_size, -1)


def delays_s(arrival_s: Floats, dp_rank: int) -> Floats:
    """[rows, steps], seconds that this rank comes after the last of the others; may be negative."""
    others_s = np.delete(arrival_s, dp_rank, axis=1).max(axis=1)
    return np.asarray(arrival_s[:, dp_rank] - others_s)


@dataclass(frozen=True, slots=True)
class LastRank:
    """The dp rank that most often comes last at a stage's all-reduces.

    `share` of the all-reduces in which it is last; `delay_s` is the median of how far it then is
    behind the others.
    """

    stage: int
    dp_rank: int
    share: float
    delay_s: float


def last_ranks(replay: WindowReplay) -> list[LastRank]:
    """The last rank of every stage with gradient all-reduces, by stage."""
    sizes = replay.window.job.parallelism
    by_stage: dict[int, list[Floats]] = {}
    for group in replay.groups:
        rows = gradient_all_reduces(group.template)
        arrival_s = arrivals_s(group, rows)
        for stage in np.unique(group.template.stage[rows]).tolist():
            of_stage = arrival_s[group.template.stage[rows] == stage]
            moments_s = of_stage.transpose(0, 2, 1).reshape(-1, sizes.dp_size)
            by_stage.setdefault(stage, []).append(moments_s)
    return [_last_rank(stage, np.concatenate(by_stage[stage])) for stage in sorted(by_stage)]


def _last_rank(stage: int, moment_s: Floats) -> LastRank:
    """The last rank of a stage by moments of arrival [all-reduces, dp]."""
    last = moment_s.argmax(axis=1)
    dp_rank = int(np.bincount(last, minlength=moment_s.shape[1]).argmax())
    is_last = last == dp_rank
    ranked_s = np.sort(moment_s[is_last], axis=1)
    delay_s = float(np.median(ranked_s[:, -1] - ranked_s[:, -2]))
    return LastRank(stage, dp_rank, float(is_last.mean()), delay_s)


def sizes_of(replay: WindowReplay) -> dict[Key, float]:
    """Median bytes of each gradient all-reduce whose bytes are recorded."""
    trace = replay.window.trace
    if trace.bytes is None:
        return {}
    keys = {
        key_of(group.template, row)
        for group in replay.groups
        for row in gradient_all_reduces(group.template).tolist()
    }
    chosen = np.isin(trace.optype, [key.code for key in keys]) & (trace.bytes > 0)
    columns = (trace.stage, trace.optype, trace.seq_id, trace.bytes)
    stage, code, seq_id, num_bytes = (column[chosen] for column in columns)
    by_key = {
        key: num_bytes[(stage == key.stage) & (code == key.code) & (seq_id == key.seq_id)]
        for key in sorted(keys)
    }
    return {key: float(np.median(sizes)) for key, sizes in by_key.items() if sizes.size}


def key_of(template: Template, row: int) -> Key:
    """The operation's key."""
    return Key(int(template.stage[row]), int(template.optype[row]), int(template.seq_id[row]))


def transfers_s(replay: WindowReplay) -> dict[Key, float]:
    """Median seconds of each gradient all-reduce from its last arrival."""
    by_key: dict[Key, list[Floats]] = {}
    for group in replay.groups:
        for row in gradient_all_reduces(group.template).tolist():
            own_s = group.durations.recorded_s[row]
            by_key.setdefault(key_of(group.template, row), []).append(own_s)
    return {key: float(np.median(np.concatenate(parts))) for key, parts in by_key.items()}


NAME = "straggl-ar"
# Share of a stage's all-reduces in which one dp rank is the last: it is chosen beforehand.
MIN_LAST_SHARE = 0.9
MIN_WON = 0.005
# The authors' code has schedules for so many GPUs.
PUBLISHED_RANKS = (4, 8)
# 22 % less time measured on 8 GPUs (first version), 26.6 % by the model.
LEAST_OF_MODEL = 22 / 26.6


def straggl_ar(case: AdviceCase) -> Fix | NotOffered:
    """Replace the gradients' all-reduce where one dp rank is always the last."""
    refusal = _refusal(case)
    if refusal is not None:
        return NotOffered(NAME, *refusal)
    num_ranks = case.replay.window.job.parallelism.dp_size
    ranks = last_ranks(case.replay)
    usual = max(ranks, key=lambda last: (last.share, last.delay_s))
    if usual.share < MIN_LAST_SHARE:
        return NotOffered(
            NAME,
            f"no dp rank is always the last at the gradients' all-reduce: dp {usual.dp_rank} on "
            f"stage {usual.stage} is in {usual.share:.0%} of them",
        )
    sizes, seconds = sizes_of(case.replay), transfers_s(case.replay)
    # The job's own all-reduces. With one size alpha is 0, at which StragglAR wins least.
    network = fit_network([Measured(num_ranks, size, seconds[key]) for key, size in sizes.items()])
    if network is None:
        return NotOffered(
            NAME,
            f"dp {usual.dp_rank} is {_ms(usual.delay_s)} behind the others, and how many bytes "
            "they reduce is not known",
            (Need("the bytes of the gradients' all-reduce (bytes= of the recorder)"),),
        )
    model = _Model(num_ranks, network, sizes)
    late = [last for last in ranks if last.share >= MIN_LAST_SHARE]
    paying = {last.stage: last for last in late if model.pays(last)}
    if not paying:
        return NotOffered(NAME, model.reason(usual))
    return _fix(case, model, paying)


def _refusal(case: AdviceCase) -> tuple[str, tuple[Need, ...]] | None:
    """A property of the job itself that rules the fix out, and facts that would change that."""
    sizes = case.replay.window.job.parallelism
    num_ranks, templates = sizes.dp_size, [group.template for group in case.replay.groups]
    if num_ranks < 2:
        return "the job has one dp rank, which exchanges no gradients", ()
    if not all(gradient_all_reduces(template).size for template in templates):
        if not any(is_sharded(template) for template in templates):
            return "no all-reduce of gradients over the dp ranks is recorded", ()
        return "gradients are reduce-scattered, as ZeRO and FSDP do: StragglAR is an all-reduce", ()
    if num_ranks & (num_ranks - 1):
        return (
            f"its schedule for {num_ranks} dp ranks is not known: the model is for powers of two",
            (Need(f"the schedule of the authors' synthesizer for {num_ranks} ranks"),),
        )
    if num_ranks == 2:
        return "with two dp ranks no others can begin before the last one", ()
    if sizes.dsp_size > 1:
        return "gradients are reduced over context-parallel ranks, too, which are not recorded", ()
    num_hosts = _most_hosts(case)
    if num_hosts is None:
        needs = (Need("the workers' host names (host= of the recorder)"),)
        return (
            "it needs the equal links of one server, and the dp ranks' hosts are not known",
            needs,
        )
    if num_hosts > 1:
        return f"it needs the equal links of one server: the dp ranks are on {num_hosts} hosts", ()
    return None


def _most_hosts(case: AdviceCase) -> int | None:
    """Hosts of the dp ranks of one stage, at most; None if some are not known."""
    window = case.replay.window
    sizes = window.job.parallelism
    of_stages = [
        {window.hosts.get((dp_rank, stage)) for dp_rank in range(sizes.dp_size)}
        for stage in range(sizes.pp_size)
    ]
    return None if any(None in hosts for hosts in of_stages) else max(map(len, of_stages))


@dataclass(frozen=True)
class _Model:
    """Time of StragglAR over that of a ring, for all-reduces of known size."""

    num_ranks: int
    network: Network
    sizes: Mapping[Key, float]

    def largest(self, stage: int) -> float:
        """Bytes of the largest all-reduce of a stage; 0 where not known."""
        return max((size for key, size in self.sizes.items() if key.stage == stage), default=0.0)

    def break_even_s(self, last: LastRank) -> float | None:
        """Delay in seconds from which the stage's largest all-reduce takes less time."""
        largest = self.largest(last.stage)
        return self.network.break_even_delay_s(self.num_ranks, largest) if largest else None

    def pays(self, last: LastRank) -> bool:
        """Whether the last rank is behind by more than that."""
        limit_s = self.break_even_s(last)
        return limit_s is not None and last.delay_s > limit_s

    def reason(self, last: LastRank) -> str:
        """The reason why StragglAR does not pay."""
        if not self.largest(last.stage):
            return f"the size of the all-reduce on stage {last.stage} is not recorded"
        limit_s = self.break_even_s(last)
        pays = "never pays" if limit_s is None else f"pays from {_ms(limit_s)}"
        return (
            f"dp {last.dp_rank} is {_ms(last.delay_s)} behind the others at the gradients' "
            f"all-reduce, and StragglAR {pays}"
        )

    def share(self, key: Key, delay_s: Floats) -> Floats:
        """[delays], its time over the ring's; 1 for a size that is not known."""
        size = self.sizes.get(key)
        if size is None:
            return np.ones(delay_s.shape)
        usual_s = self.network.ring_s(self.num_ranks, size)
        return self.network.straggl_ar_s(self.num_ranks, size, delay_s) / usual_s


def _fix(case: AdviceCase, model: _Model, late: Mapping[int, LastRank]) -> Fix | NotOffered:
    change = Change(reassign=lambda durations: _reassign(durations, model, late))
    step_s = case.step_s_with(change)
    worst = max(late.values(), key=lambda gradients: gradients.delay_s)
    if step_s > case.step_s * (1 - MIN_WON):
        return NotOffered(NAME, "the gradients' all-reduce is too small a part of the step")
    least_s = case.step_s - LEAST_OF_MODEL * (case.step_s - step_s)
    needs = case.restart_needs()
    if model.num_ranks not in PUBLISHED_RANKS:
        needs = (
            Need(f"an implementation for {model.num_ranks} ranks (the authors' code has 4 and 8)"),
            *needs,
        )
    return case.fix(
        NAME,
        f"All-reduce gradients with StragglAR, dp {worst.dp_rank} as the last rank",
        step_s=step_s,
        step_range_s=(step_s, least_s),
        certainty=min(gradients.share for gradients in late.values()),
        risk=(
            "Research code for one server whose GPUs have equal links. Predicted against a ring: "
            "NCCL may use another algorithm, NVLS or a tree, that is faster already."
        ),
        change=change,
        paste=_pastes(model, worst),
        needs=needs,
    )


def _reassign(durations: ChangedDurations, model: _Model, late: Mapping[int, LastRank]) -> None:
    """Each all-reduce of these stages takes the model's share of its time, step by step."""
    group = durations.replayer()
    rows = gradient_all_reduces(group.template)
    rows = rows[np.isin(group.template.stage[rows], list(late))]
    arrival_s, own_s = arrivals_s(group, rows), durations.of(rows)
    for at, row in enumerate(rows.tolist()):
        key = key_of(group.template, row)
        delay_s = delays_s(arrival_s[at : at + 1], late[key.stage].dp_rank)[0]
        own_s[at] *= np.tile(model.share(key, delay_s), group.dp_size)
    durations.set(rows, own_s)


def _pastes(model: _Model, last: LastRank) -> tuple[Paste, ...]:
    settings = (FORCE_RING, RECORD_COLLECTIVES)
    if model.num_ranks not in PUBLISHED_RANKS:
        return settings
    # As in the authors' example: n - 1 pieces of whole kilobytes.
    piece = 1024 * (model.num_ranks - 1)
    num_bytes = -int(-model.largest(last.stage) // piece) * piece
    delay_ms = max(1, round(1e3 * last.delay_s))
    measure = (
        "git clone https://github.com/arjundevraj/stragglar && cd stragglar/stragglar\n"
        "nvcc -diag-suppress=177 -I${NCCL_HOME}/include -L${NCCL_HOME}/lib -lnccl -o allreduce "
        f"allreduce_{model.num_ranks}GPU.cu -std=c++17\n"
        f"./allreduce {num_bytes} ring 20 {delay_ms}\n"
        f"./allreduce {num_bytes} stragglar 20 {delay_ms}"
    )
    return (Paste("Measure both on one server with this job's bytes and delay", measure), *settings)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 0.01 else f"{1e3 * seconds:.0f} ms"
