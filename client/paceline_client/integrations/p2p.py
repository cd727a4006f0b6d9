"""When were the sends and receives of a pipeline posted, and how long was each waited for?

Two functions of torch.distributed.pipelining post all of them and wait for them; they are
replaced once per process, and do as before for what bears no label.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from .computing import Computing


class Transfers:
    """Sends that are under way, of one recorder."""

    def __init__(self, recorder: Any, computing: Computing) -> None:
        install()
        self._recorder = recorder
        self._computing = computing
        self._sent: dict[Label, Any] = {}
        self.num_under_way = 0  # posted at once, and not waited for yet

    def begin(self, label: Label) -> Any:
        """The transfer begins."""
        return self._recorder.begin(label.optype, microbatch=label.microbatch, chunk=label.chunk)

    def posted(self, label: Label) -> None:
        """A send is under way."""
        self._sent[label] = self.begin(label)

    def end(self, begun: Any) -> None:
        """The transfer has ended."""
        self._recorder.end(begun)

    def arrived(self, label: Label) -> None:
        """A send has been waited for."""
        begun = self._sent.pop(label, None)
        if begun is not None:
            self._recorder.end(begun)

    def let_go(self) -> None:
        """The worker goes on without waiting for its sends: when they end, nobody here sees."""
        while self._sent:
            _, begun = self._sent.popitem()
            self._recorder.end(begun)


class Label(NamedTuple):
    """Whose transfer a P2POp is."""

    transfers: Transfers
    optype: str
    microbatch: int
    chunk: int


class _Posted(list):  # type: ignore[type-arg]
    """Works that are under way, with the label of each."""

    labels: Sequence[Label | None] = ()

    def transfers(self) -> set[Transfers]:
        """Whose works they are."""
        return {label.transfers for label in self.labels if label is not None}


def label_with(ops: Sequence[Any], label: Label) -> None:
    """All of them are parts of one transfer."""
    with contextlib.suppress(Exception):  # one that takes no label is not recorded
        for op in ops:
            op.paceline_label = label


def install() -> None:
    """Replace the two functions, once.

    Raises:
        ImportError, AttributeError: this version of PyTorch has no such functions.
    """
    schedules: Any = import_module("torch.distributed.pipelining.schedules")
    post, wait = schedules._batch_p2p, schedules._wait_batch_p2p  # older ones lack the second
    if not hasattr(post, "__wrapped__"):
        schedules._batch_p2p, schedules._wait_batch_p2p = _posting(post), _waiting(wait)


def _posting(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def post(p2p_ops: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        labels = [getattr(op, "paceline_label", None) for op in p2p_ops]
        if not any(labels):
            return original(p2p_ops, *args, **kwargs)
        for label in dict.fromkeys(labels):
            if label is not None and label.optype.endswith("-send"):
                label.transfers.posted(label)
        posted = _Posted(original(p2p_ops, *args, **kwargs))
        # Where NCCL makes one work of several operations, they all end with it.
        same = len(posted) == len(labels)
        posted.labels = labels if same else [None] * (len(posted) - 1) + labels
        for transfers in posted.transfers():
            transfers.num_under_way += 1
        return posted

    post.__wrapped__ = original  # type: ignore[attr-defined]
    return post


def _waiting(original: Callable[[list[Any]], None]) -> Callable[[list[Any]], None]:
    def wait(work: list[Any]) -> None:
        labels = getattr(work, "labels", ())
        if not any(labels):
            original(work)
            return
        for transfers in cast("_Posted", work).transfers():
            transfers.num_under_way = max(0, transfers.num_under_way - 1)
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
