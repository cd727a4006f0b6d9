"""Records torch.distributed.pipelining: what each stage computes, sends and receives.

    from paceline_client.integrations import torch_pipeline

    torch_pipeline.attach(recorder, schedule)
    for number in range(num_steps):
        with recorder.step(number):
            schedule.step(tokens, target=targets)
            with recorder.op("optimizer"):
                optimizer.step()

Works with 1F1B, GPipe, interleaved and zero-bubble schedules with stage i on rank i modulo the
number of ranks. A send is recorded from its post until the worker has waited for it or continues to
compute. A receive is recorded from the start of the wait for it: overlap with computation is free.

Posts and waits are observed in two functions of torch.distributed.pipelining, which are replaced
once per process and behave as before for transfers without a label.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from ..guard import guarded
from .computing import CurrentComputation, current_computation


class SendsInFlight:
    """A recorder's sends in flight."""

    def __init__(self, recorder: Any, computing: CurrentComputation) -> None:
        install_hooks()
        self._recorder = recorder
        self._computing = computing
        self._sent: dict[TransferLabel, Any] = {}
        self.num_in_flight = 0  # posted batches that have not been waited for

    @guarded()
    def begin(self, label: TransferLabel) -> Any:
        """Begin a transfer."""
        return self._recorder.begin(label.optype, microbatch=label.microbatch, chunk=label.chunk)

    @guarded()
    def posted(self, label: TransferLabel) -> None:
        """Begin a send."""
        self._sent[label] = self.begin(label)

    @guarded()
    def end(self, begun: Any) -> None:
        """End a transfer."""
        self._recorder.end(begun)

    @guarded()
    def arrived(self, label: TransferLabel) -> None:
        """End a send that has been waited for."""
        begun = self._sent.pop(label, None)
        if begun is not None:
            self._recorder.end(begun)

    @guarded()
    def release(self) -> None:
        """End all sends: the worker continues without waiting for them."""
        while self._sent:
            _, begun = self._sent.popitem()
            self._recorder.end(begun)


class TransferLabel(NamedTuple):
    """The transfer that a P2POp belongs to."""

    transfers: SendsInFlight
    optype: str
    microbatch: int
    chunk: int


class _Posted(list):  # type: ignore[type-arg]
    """Works in flight, with the label of each."""

    labels: Sequence[TransferLabel | None] = ()

    def transfers(self) -> set[SendsInFlight]:
        """The recorders' sends among them."""
        return {label.transfers for label in self.labels if label is not None}


def label_with(ops: Sequence[Any], label: TransferLabel) -> None:
    """Label P2POps as parts of one transfer."""
    with contextlib.suppress(Exception):  # an op that takes no label is not recorded
        for op in ops:
            op.paceline_label = label


def install_hooks() -> None:
    """Replace the two functions, once.

    Raises:
        ImportError, AttributeError: this version of PyTorch has no such functions.
    """
    schedules: Any = import_module("torch.distributed.pipelining.schedules")
    post, wait = schedules._batch_p2p, schedules._wait_batch_p2p  # older ones lack the second
    if not hasattr(post, "__wrapped__"):
        schedules._batch_p2p, schedules._wait_batch_p2p = _wrap_post(post), _wrap_wait(wait)


def _wrap_post(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def post(p2p_ops: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        labels = [getattr(op, "paceline_label", None) for op in p2p_ops]
        if not any(labels):
            return original(p2p_ops, *args, **kwargs)
        for label in dict.fromkeys(labels):
            if label is not None and label.optype.endswith("-send"):
                label.transfers.posted(label)
        posted = _Posted(original(p2p_ops, *args, **kwargs))
        # If NCCL makes one work of several operations, they all end with it.
        same = len(posted) == len(labels)
        posted.labels = labels if same else [None] * (len(posted) - 1) + labels
        for transfers in posted.transfers():
            transfers.num_in_flight += 1
        return posted

    post.__wrapped__ = original  # type: ignore[attr-defined]
    return post


def _wrap_wait(original: Callable[[list[Any]], None]) -> Callable[[list[Any]], None]:
    def wait(work: list[Any]) -> None:
        labels = getattr(work, "labels", ())
        if not any(labels):
            original(work)
            return
        for transfers in cast("_Posted", work).transfers():
            transfers.num_in_flight = max(0, transfers.num_in_flight - 1)
        received = {
            label: label.transfers.begin(label)
            for label in dict.fromkeys(labels)
            if label is not None and label.optype.endswith("-recv")
        }
        for position, each in enumerate(work):
            original([each])
            last = position == len(work) - 1
            done = labels[position:] if last else labels[position : position + 1]
            later = () if last else labels[position + 1 :]
            for label in dict.fromkeys(done):
                if label is None or label in later:
                    continue
                if label in received:
                    label.transfers.end(received[label])
                else:
                    label.transfers.arrived(label)

    wait.__wrapped__ = original  # type: ignore[attr-defined]
    return wait


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
    """A recorded schedule."""

    def __init__(self, recorder: Any, schedule: Any, work: Work | None) -> None:
        self._computing = current_computation(recorder)
        self._transfers = SendsInFlight(recorder, self._computing)
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
        """Restore the schedule."""
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
        """Replace a method of this object by `by(original, *about, ...)`."""
        original = getattr(owner, name, None)
        if original is not None:
            self._replaced.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, functools.partial(by, original, *about))

    def _attributes(self, microbatch: int) -> Mapping[str, int]:
        if self._work is None or not self._computing.is_recording:
            return {}
        try:
            return self._work(microbatch)
        except Exception:
            log.debug("paceline: the work of a micro-batch is unknown", exc_info=True)
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
        self._transfers.release()
        self._computing.begin(optype, microbatch, chunk, **self._attributes(microbatch))
        if self._transfers.num_in_flight:
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
        label_with(ops, TransferLabel(self._transfers, optype, microbatch, chunk))
        return ops

    def _whole_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self._computing.end()
            self._transfers.release()
            self._transfers.num_in_flight = 0


class NotAttached:
    """Returned if the schedule cannot be recorded."""

    def detach(self) -> None:
        """Nothing to undo."""


def attach(recorder: Any, schedule: Any, *, work: Work | None = None) -> Attached | NotAttached:
    """Record every step of a schedule from now on.

    A schedule has one recorder, the one attached last. `work(microbatch)` returns attributes of a
    micro-batch of the current step, `tokens` and `seq_len_sq`, which distinguish uneven sequences
    from a slow worker. Never raises: logs one warning if the schedule cannot be recorded.
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
        return NotAttached()


def _stages_of(schedule: Any) -> list[Any]:
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if stages == [None]:
        raise TypeError(
            f"{type(schedule).__name__} is not a schedule of torch.distributed.pipelining"
        )
    return list(stages)


def _check(stage: Any) -> None:
    size, index = int(stage.group_size), int(stage.stage_index)
    ranks = getattr(stage, "stage_index_to_group_rank", {})
    if ranks.get(index, index % size) != index % size:
        raise ValueError(
            f"stage {index} is on rank {ranks[index]} of {size}: only schedules with stage i on "
            f"rank i modulo {size} are recorded, here rank {index % size}"
        )
