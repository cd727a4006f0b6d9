"""One window, diagnosed again and again with other thresholds; what does not read them is kept.

The first diagnosis notes which fields are read, and by which evidence (`app.diagnosis.case`).
Evidence that a field had no part in holds for every value of it, so that a diagnosis with another
value computes the rest alone. Properties that objects keep for themselves are no evidence: a field
that one of them reads, by whatever it calls, makes a new case necessary.
"""

import inspect
import threading
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from app.diagnosis.case import Case
from app.diagnosis.diagnose import Diagnosis, diagnosis_of
from app.diagnosis.job_history import History
from app.engine.replays import WindowReplay
from app.engine.report import Report
from benchmarks.diagnosis.limits import Threshold, all_thresholds, replaced, watched, with_value

_KEEPS = cached_property.__get__.__code__


class _Reads:
    """Keys of the fields that are read: of all, by each evidence, by properties that are kept."""

    def __init__(self, by_evidence: Mapping[Any, frozenset[str]] | None = None) -> None:
        self.all = set[str]()
        self.kept = set[str]()
        self.by_evidence: dict[Any, frozenset[str]] = dict(by_evidence or {})
        self._open: list[tuple[Any, set[str]]] = []

    def read(self, limits: str, field: str) -> None:
        """A field of an object is read."""
        self._note({f"{limits}.{field}"})

    def begin(self, evidence: Any) -> None:
        """Evidence is being computed: what is read until its end is read by it."""
        self._open.append((evidence, set()))

    def end(self, evidence: Any) -> None:
        """Evidence was computed; what failed inside it was not."""
        while self._open:
            last, keys = self._open.pop()
            if last == evidence:
                self.by_evidence[evidence] = frozenset(keys)
                return

    def use(self, evidence: Any) -> None:
        """Evidence is asked for: what it read is read by whatever asks for it."""
        self._note(self.by_evidence.get(evidence, frozenset()))

    def _note(self, keys: set[str] | frozenset[str]) -> None:
        if not keys:
            return
        self.all |= keys
        if self._open:
            self._open[-1][1].update(keys)
        if not keys <= self.kept and _is_kept():
            self.kept |= keys


def _is_kept() -> bool:
    """Whether a property that is computed once is being computed; in other threads that may be."""
    if threading.current_thread() is not threading.main_thread():
        return True
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _KEEPS:
        frame = frame.f_back
    return frame is not None


class _Answers(dict[Any, Any]):
    """What `evidence` keeps, which says what it is asked for."""

    def __init__(self, reads: _Reads, kept: Mapping[Any, Any] | None = None) -> None:
        super().__init__(kept or {})
        self._reads = reads

    def __contains__(self, key: object) -> bool:
        is_known = super().__contains__(key)
        if not is_known:
            self._reads.begin(key)
        return is_known

    def __setitem__(self, key: Any, answer: Any) -> None:
        super().__setitem__(key, answer)
        self._reads.end(key)

    def __getitem__(self, key: Any) -> Any:
        self._reads.use(key)
        return super().__getitem__(key)


class VariedCase:
    """A window's case; `usual` is its diagnosis with all thresholds as they are."""

    def __init__(self, replay: WindowReplay, report: Report) -> None:
        self._window = replay, report
        self._begin()

    @property
    def read(self) -> frozenset[str]:
        """Keys of the thresholds that were read for the usual diagnosis."""
        return frozenset(self._reads.all)

    def with_other(self, threshold: Threshold, value: Any) -> Diagnosis:
        """The diagnosis with another value of one threshold."""
        key, other = threshold.key, with_value(threshold, value)
        if key in self._reads.kept:
            with replaced({key: (threshold.owner, other)}):
                return diagnosis_of(Case(*self._window, History()))
        unread = {
            evidence: self._answers.get(evidence)
            for evidence, keys in self._reads.by_evidence.items()
            if key not in keys
        }
        reads = _Reads({evidence: self._reads.by_evidence[evidence] for evidence in unread})

        def on_read(name: str) -> None:
            if name == threshold.field:
                reads.read(f"{threshold.module}.{threshold.limits}", name)

        vars(self._case)["answers"] = _Answers(reads, unread)
        try:
            with replaced({key: (threshold.owner, watched(other, on_read))}):
                return diagnosis_of(self._case)
        finally:
            vars(self._case)["answers"] = self._answers
            if key in reads.kept:  # objects that are kept hold what follows from the other value
                self._begin()

    def _begin(self) -> None:
        """Diagnose with the usual values, and note what is read."""
        self._reads = reads = _Reads()
        self._case = Case(*self._window, History())
        self._answers = _Answers(reads)
        vars(self._case)["answers"] = self._answers
        owners: dict[str, Any] = {}
        for threshold in all_thresholds():
            owners.setdefault(f"{threshold.module}.{threshold.limits}", threshold.owner)
        others = {
            name: (owner, watched(owner, partial(reads.read, name)))
            for name, owner in owners.items()
        }
        with replaced(others):
            self.usual = diagnosis_of(self._case)
