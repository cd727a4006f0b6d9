"""Questions asked the slow and obvious way: operation by operation, over plain Python objects."""

from hypothesis import strategies as st

from app.engine.questions.edits import Add, Edit, Factor, FromWorker, Ideal, Selection, Set
from app.trace.window import Window
from tests.reference import Reference
from tests.reference_ops import Op

FORWARD = {"forward-send", "forward-recv"}
BACKWARD = {"backward-send", "backward-recv"}
DP_COMM = {"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"}
OTHER_COMM = {
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
}
COMPUTE = {
    "forward-compute",
    "backward-compute",
    "backward-input-compute",
    "backward-weight-compute",
    "optimizer",
    "gc",
}
GROUPS = {
    "compute": COMPUTE | {"loss", "offload"},
    "pp-comm": FORWARD | BACKWARD | {"next-send", "next-recv", "back-send", "back-recv"},
    "forward-pp-comm": FORWARD,
    "backward-pp-comm": BACKWARD,
    "dp-comm": DP_COMM | {"replica-barrier", "replica-sync"},
}
GROUPS["comm"] = (
    GROUPS["pp-comm"]
    | GROUPS["dp-comm"]
    | OTHER_COMM
    | {"experts", "tensors", "stage-barrier", "dispatch", "combine"}
    | {"tensor-gather", "stage-sync", "heartbeat"}
)


class Asked:
    """A window's operations with durations that can be edited one by one."""

    def __init__(self, window: Window) -> None:
        self.job = Reference(window)
        self.took_s = {op: s for group in self.job.groups for op, s in group.transfer_s.items()}
        self.counts: list[tuple[int, int]] = []

    def make(self, edit: Edit) -> bool:
        """Make one edit; whether it selects any operation at all."""
        selected = [op for op in self.job.ops if _is_selected(op, edit.select)]
        new_s = {op: self._changed_s(op, edit.change) for op in selected}
        missing = [op for op, took_s in new_s.items() if took_s is None]
        self.took_s |= {op: took_s for op, took_s in new_s.items() if took_s is not None}
        self.counts.append((len(selected) - len(missing), len(missing)))
        return bool(selected)

    def step_times(self) -> list[float]:
        for group in self.job.groups:
            group.transfer_s = {op: self.took_s[op] for op in group.ops}
        return self.job.step_times(lambda op: True)

    def _changed_s(self, op: Op, change: object) -> float | None:
        group = self.job.group[op.step]
        match change:
            case Ideal():
                return group.ideal_s[op.optype]
            case Factor(factor):
                return max(min(0.0, self.took_s[op]), self.took_s[op] * factor)
            case Add(seconds):
                return max(min(0.0, self.took_s[op]), self.took_s[op] + seconds)
            case Set(seconds):
                return seconds
            case FromWorker(dp_rank, stage):
                twin = group.op.get((op.step, dp_rank, op.key._replace(stage=stage)))
                return None if twin is None else self.took_s[twin]
        raise AssertionError(change)


def _is_selected(op: Op, select: Selection) -> bool:
    types = set().union(*(GROUPS.get(name, {name}) for name in select.op_types))
    return (
        (not types or op.optype in types)
        and (not select.stages or op.key.stage in select.stages)
        and (not select.dp_ranks or op.dp_rank in select.dp_ranks)
        and (not select.workers or op.worker in select.workers)
        and (not select.steps or op.step in select.steps)
        and (not select.microbatches or op.mb_id in select.microbatches)
    )


def changes(window: Window) -> st.SearchStrategy:
    """Changes of every kind that the window's sizes allow."""
    sizes = window.job.parallelism
    return st.one_of(
        st.just(Ideal()),
        st.builds(Factor, st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        st.builds(Add, st.sampled_from([-0.5, -0.001, 0.0, 0.25, 2.0])),
        st.builds(Set, st.sampled_from([0.0, 0.125, 1.0])),
        st.builds(FromWorker, st.integers(0, sizes.dp_size - 1), st.integers(0, sizes.pp_size - 1)),
    )


def selections(window: Window) -> st.SearchStrategy[Selection]:
    """Selections of what there is, alone and together; some of them select nothing."""
    sizes = window.job.parallelism
    dp_ranks, stages = st.integers(0, sizes.dp_size - 1), st.integers(0, sizes.pp_size - 1)
    present = sorted({op.optype for op in Reference(window).ops})
    return st.builds(
        Selection,
        op_types=_few(st.sampled_from([*present, *GROUPS])),
        stages=_few(stages),
        dp_ranks=_few(dp_ranks),
        workers=_few(st.tuples(dp_ranks, stages)),
        steps=_few(st.sampled_from(window.steps)),
        microbatches=_few(st.integers(0, 3), most=1),
    )


def edits(window: Window) -> st.SearchStrategy[list[Edit]]:
    """Up to four edits, one after the other."""
    return st.lists(st.builds(Edit, changes(window), selections(window)), min_size=1, max_size=4)


def _few(values: st.SearchStrategy, most: int = 2) -> st.SearchStrategy[tuple]:
    """Mostly none, since every field narrows what the others leave."""
    some = st.lists(values, min_size=1, max_size=most, unique=True).map(tuple)
    return st.one_of(st.just(()), st.just(()), some)
