"""The windows that the consumer's own assembler closes over a made job's batches."""

from collections.abc import Iterable, Iterator

from app.ingest.assembler import Change, Rules, RunAssembler
from app.ingest.batch import OpBatch
from app.trace.job import Job
from app.trace.window import Window

DEADLINE_S = 30.0  # what the consumer waits by default


def closed_windows(
    job: Job, epoch: int, window_steps: int, arriving: Iterable[tuple[float, OpBatch]]
) -> Iterator[Window]:
    """Every window of the run when it closes, and again when what came late has revised it."""
    stored: dict[int, bytes] = {}
    rules = Rules(window_steps, DEADLINE_S)
    run = RunAssembler(job, epoch, rules, stored.__getitem__)
    for change in _changes(run, arriving):
        if change.ops is not None:
            stored[change.window.first_step] = change.ops
            yield change.window


def _changes(run: RunAssembler, arriving: Iterable[tuple[float, OpBatch]]) -> Iterator[Change]:
    now_s = 0.0
    for now_s, batch in arriving:
        due_s = run.next_deadline_s()
        if due_s is not None and due_s < now_s:  # the consumer's clock does not wait for batches
            yield from run.settle(now_s, tells_open=False)
        run.add(batch, now_s)
        yield from run.settle(now_s, tells_open=False)
    yield from run.finish(now_s, "complete")
