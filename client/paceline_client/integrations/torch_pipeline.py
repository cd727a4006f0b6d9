"""Records torch.distributed.pipelining: what each stage computes, sends and receives.

    from paceline_client.integrations import torch_pipeline

    torch_pipeline.attach(recorder, schedule)
    for number in range(num_steps):
        with recorder.step(number):
            schedule.step(tokens, target=targets)
            with recorder.op("optimizer"):
                optimizer.step()

Works with 1F1B, GPipe, interleaved and zero-bubble schedules whose stages go round the ranks
(stage i on rank i modulo the number of ranks). A send counts from when it is posted to when the
worker has waited for it, or goes on computing. A receive counts from when the worker begins to
wait for it: what of it went on behind a computation cost nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from .computing import computing
from .p2p import Label, Transfers, label_with

log = logging.getLogger("paceline_client")

# Of a micro-batch: what `Recorder.op` takes, for example {"tokens": 4096, "seq_len_sq": 8388608}.
Work = Callable[[int], Mapping[str, int]]

_P2P = {
    "get_fwd_recv_ops": "forward-recv",
    "get_fwd_send_ops": "forward-send",
    "get_bwd_recv_ops": "backward-recv",
    "get_bwd_send_ops": "backward-send",
}


class Attached:
    """A schedule that is being recorded."""

    def __init__(self, recorder: Any, schedule: Any, work: Work | None) -> None:
        self._computing = computing(recorder)
        self._transfers = Transfers(recorder, self._computing)
        self._work = work
        self._replaced: list[tuple[Any, str, Any]] = []
        stages = _stages_of(schedule)
        has_loss = getattr(schedule, "_loss_fn", None) is not None
        for stage in stages:
            self._attach_stage(stage, has_loss and bool(stage.is_last))
        if has_loss:
            self._replace(schedule, "_loss_fn", self._loss)
        self._replace(schedule, "_step_microbatches", self._whole_step)

    def detach(self) -> None:
        """Leave the schedule as it was."""
        replaced, self._replaced = self._replaced, []
        for owner, name, before in reversed(replaced):
            if before is None:
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, before)

    def _attach_stage(self, stage: Any, keeps_open: bool) -> None:
        chunk = int(stage.stage_index) // int(stage.group_size)
        self._replace(stage, "forward_one_chunk", self._forward, chunk, keeps_open)
        self._replace(stage, "backward_one_chunk", self._backward, chunk)
        self._replace(stage, "backward_weight_one_chunk", self._backward_weight, chunk)
        for name, optype in _P2P.items():
            self._replace(stage, name, self._labelled, chunk, optype)

    def _replace(self, owner: Any, name: str, by: Callable[..., Any], *about: Any) -> None:
        """Puts `by(original, *about, ...)` in the place of a method, on this object only."""
        original = getattr(owner, name, None)
        if original is not None:
            self._replaced.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, functools.partial(by, original, *about))

    def _told(self, microbatch: int) -> Mapping[str, int]:
        if self._work is None or not self._computing.is_recording:
            return {}
        try:
            return self._work(microbatch)
        except Exception:
            log.debug("paceline: the work of a micro-batch is not known", exc_info=True)
            return {}

    def _forward(
        self,
        original: Callable[..., Any],
        chunk: int,
        keeps_open: bool,
        fwd_chunk_id: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with self._computed("forward-compute", fwd_chunk_id, chunk, keeps_open):
            return original(fwd_chunk_id, *args, **kwargs)

    def _backward(
        self,
        original: Callable[..., Any],
        chunk: int,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        **kwargs: Any,
    ) -> Any:
        optype = "backward-compute" if full_backward else "backward-input-compute"
        with self._computed(optype, bwd_chunk_id, chunk):
            return original(bwd_chunk_id, loss=loss, full_backward=full_backward, **kwargs)

    def _backward_weight(
        self, original: Callable[..., Any], chunk: int, bwd_chunk_id: int, **kwargs: Any
    ) -> Any:
        with self._computed("backward-weight-compute", bwd_chunk_id, chunk):
            return original(bwd_chunk_id, **kwargs)

    @contextlib.contextmanager
    def _computed(
        self, optype: str, microbatch: int, chunk: int, keeps_open: bool = False
    ) -> Iterator[None]:
        self._transfers.let_go()
        self._computing.begin(optype, microbatch, chunk, **self._told(microbatch))
        if self._transfers.num_under_way:
            self._computing.may_wait()
        try:
            yield
        finally:
            if not keeps_open:  # the last stage's forward includes its loss
                self._computing.end()

    def _loss(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self._computing.end()

    def _labelled(
        self, original: Callable[[int], Sequence[Any]], chunk: int, optype: str, microbatch: int
    ) -> Sequence[Any]:
        self._computing.end()
        ops = original(microbatch)
        label_with(ops, Label(self._transfers, optype, microbatch, chunk))
        return ops

    def _whole_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self._computing.end()
            self._transfers.let_go()
            self._transfers.num_under_way = 0


class Nothing:
    """What is attached where nothing can be recorded."""

    def detach(self) -> None:
        """Nothing to undo."""


def attach(recorder: Any, schedule: Any, *, work: Work | None = None) -> Attached | Nothing:
    """Record every step of a schedule from now on.

    A schedule is recorded once: by the recorder that it was attached to last. `work(microbatch)`
    tells what is known of a micro-batch of the step that runs: `tokens` and `seq_len_sq`, so that
    uneven sequences are told from a slow worker. Never raises: what cannot be recorded is said in
    one warning.
    """
    try:
        for stage in _stages_of(schedule):
            _check(stage)
        before = getattr(schedule, "paceline_attached", None)
        if before is not None:
            before.detach()
        schedule.paceline_attached = Attached(recorder, schedule, work)
        return cast(Attached, schedule.paceline_attached)
    except Exception as error:
        log.warning("paceline: the pipeline is not recorded: %s", error)
        return Nothing()


def _stages_of(schedule: Any) -> list[Any]:
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if stages == [None]:
        raise TypeError(f"{type(schedule).__name__} is no schedule of torch.distributed.pipelining")
    return list(stages)


def _check(stage: Any) -> None:
    size, index = int(stage.group_size), int(stage.stage_index)
    ranks = getattr(stage, "stage_index_to_group_rank", {})
    if ranks.get(index, index % size) != index % size:
        raise ValueError(
            f"stage {index} is on rank {ranks[index]} of {size}: only stages that go round the "
            f"ranks are recorded, and it would be on rank {index % size}"
        )
