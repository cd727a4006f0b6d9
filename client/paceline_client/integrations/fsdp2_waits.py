"""Waits of the compute stream in FSDP2: for a layer's gather, and for gradients to be reduced.

FSDP has the stream wait for a gather in `wait_for_unshard`, for the scatter before in
`post_backward`, and for the last ones when the backward is over. None of the three has a public
hook: they are wrapped on the objects that are there, and where a version of PyTorch has no such
method, waits of that kind are not recorded. How long a wait was is told by the collective's own
event, so that neither the copies that follow nor a host that is late count as waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..cuda_span import CudaSpan
from .waiting import begin_wait

log = logging.getLogger("paceline_client")


class Reduced:
    """The newest scatter of a model, and the wait for it that is going on."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._last: CudaSpan | None = None
        self._waiting: CudaSpan | None = None
        self._is_ending = False

    def last(self, begun: Any) -> None:
        """This scatter has been posted."""
        self._last = begun if isinstance(begun, CudaSpan) else None

    def wait(self) -> None:
        """The compute stream may be about to wait."""
        self._waiting = begin_wait(self._recorder, self._last)

    def waited(self) -> None:
        """If it has, that is over."""
        begun, self._waiting = self._waiting, None
        if begun is not None and self._last is not None:
            begun.end_with(self._last)

    def module_done(self) -> None:
        """A module's `post_backward` is over: within the last callback, more may follow."""
        self.waited()
        if self._is_ending:
            self.wait()

    def begin_end(self) -> None:
        """The backward's last callback begins, which has the stream wait for all scatters."""
        self._is_ending = True
        self.wait()

    def end(self) -> None:
        """It is over."""
        self._is_ending = False
        self.waited()


class ModuleWaits:
    """The gather of a module that nobody has waited for yet."""

    def __init__(self, recorder: Any, reduced: Reduced) -> None:
        self._recorder = recorder
        self.reduced = reduced
        self._gathered: CudaSpan | None = None
        self._is_watched = False

    def gathered(self, begun: Any) -> None:
        """This gather has been posted."""
        self._gathered = begun if self._is_watched and isinstance(begun, CudaSpan) else None

    def watch(self, module: Any) -> None:
        """See where the compute stream waits, as far as this version of PyTorch shows it."""
        try:
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        except Exception:
            log.debug("paceline: FSDP's waits cannot be seen", exc_info=True)
            return
        # Of all modules' one is called, that of the first whose gradients are there.
        end = "_root_post_backward_final_callback"
        _around(state, end, self.reduced.begin_end, self.reduced.end)
        found = [group for group in groups if group is not None]
        for group in found:
            _around(group, "post_backward", self.reduced.wait, self.reduced.module_done)
        # Several groups of one module share its collective: which gather is whose is not known.
        if len(found) == 1:
            self._is_watched = _instead(found[0], "wait_for_unshard", self._wait)

    def _wait(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        gathered, self._gathered = self._gathered, None
        begun = begin_wait(self._recorder, gathered)
        try:
            return original(*args, **kwargs)
        finally:
            if begun is not None and gathered is not None:
                begun.end_with(gathered, at_once=True)


def _around(owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before()
        try:
            return original(*args, **kwargs)
        finally:
            after()

    _instead(owner, name, call)


def _instead(owner: Any, name: str, call: Callable[..., Any]) -> bool:
    """Put `call(original, ...)` in the place of a method, on this object; whether it has one."""
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    # Attached anew, the method is wrapped once.
    original = getattr(original, "paceline_original", original)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    wrapped.paceline_original = original  # type: ignore[attr-defined]
    try:
        setattr(owner, name, wrapped)
    except AttributeError:
        return False
    return True
