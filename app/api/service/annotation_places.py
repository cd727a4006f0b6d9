"""Annotations at the steps of a job: their places, their texts, and findings that follow them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from msgspec.structs import replace

from app import formatting
from app.result.finding import Finding, NearAnnotation
from app.result.window_result import WindowResult
from app.store import annotations, windows
from app.store.annotations import Annotation, AnnotationFilter
from app.store.database import Connection
from app.store.windows import WindowSummary

# Of a job, the newest ones, on its charts.
MAX_PLACED = 200
# A finding names the annotations in at most this number of steps before its onset.
MAX_STEPS_AFTER = 5
# A deploy ends one run and begins the next: before the first step by no more than this.
_BEFORE_RUN_S = 3600.0
_MAX_WINDOWS = 2000
_MAX_SHORT_CHARS = 18
_WORDS = {"note": "", "other": ""}


@dataclass(frozen=True, slots=True)
class PlacedAnnotation:
    """An annotation and the step in which it took effect.

    That is the step that its reporter gave, else the first one after its time; `epoch` and `step`
    are None where neither is known.
    """

    annotation: Annotation
    epoch: int | None
    step: int | None


def annotation_text(annotation: Annotation) -> str:
    """An annotation in words: "deploy v1.4", "node drained host-043: new kernel"."""
    words = _WORDS.get(annotation.kind, annotation.kind.replace("-", " "))
    subject = " ".join(filter(None, (words, _isolated(annotation.host))))
    if not annotation.text:
        return subject or "note"
    text = _isolated(annotation.text)
    if not subject:
        return text
    return f"{subject}: {text}" if annotation.host else f"{subject} {text}"


def short_annotation_text(annotation: Annotation) -> str:
    """The same, short enough for the ribbon."""
    text = annotation_text(annotation)
    if len(text) <= _MAX_SHORT_CHARS:
        return text
    return text[: _MAX_SHORT_CHARS - 1].rstrip() + "\u2026"


def _isolated(text: str | None) -> str:
    return formatting.bidi_isolated(text or "")


def placed_annotations(
    conn: Connection, job_id: str, known: Sequence[WindowSummary] | None = None
) -> list[PlacedAnnotation]:
    """A job's newest annotations at their steps, the oldest first; raises JobNotFound.

    `known` are its newest windows, ascending, if they were read already.
    """
    newest = annotations.of_job(conn, job_id, AnnotationFilter())[:MAX_PLACED]
    return placed_at_steps(conn, job_id, newest[::-1], known) if newest else []


def placed_at_steps(
    conn: Connection,
    job_id: str,
    records: Sequence[Annotation],
    known: Sequence[WindowSummary] | None = None,
) -> list[PlacedAnnotation]:
    """These annotations at their steps; raises as `placed_annotations` does."""
    are_by_time = any(annotation.step is None for annotation in records)
    if are_by_time and known is None:
        known, _ = windows.newest_windows(conn, job_id, limit=_MAX_WINDOWS)
    timeline = _Timeline(conn, job_id, known) if are_by_time and known else None
    return [_placed(annotation, timeline) for annotation in records]


def _placed(annotation: Annotation, timeline: "_Timeline | None") -> PlacedAnnotation:
    if annotation.step is not None or timeline is None:
        return PlacedAnnotation(annotation, annotation.epoch, annotation.step)
    return PlacedAnnotation(annotation, *(timeline.step_after(annotation.at_s) or (None, None)))


class _Timeline:
    """When the steps of a job's windows started.

    Of a window whose workers have no time of day, its steps are spread between the analyses of
    the window before and its own.
    """

    def __init__(self, conn: Connection, job_id: str, known: Sequence[WindowSummary]) -> None:
        self._conn = conn
        self._job_id = job_id
        self._windows = known
        self._run_begins_s = windows.run_beginnings(conn, job_id, since=known[0].epoch)
        first_steps: dict[int, list[int]] = {}
        for window in known:
            first_steps.setdefault(window.epoch, []).append(window.first_step)
        starts_s = {
            epoch: windows.step_starts(conn, job_id, epoch, steps)
            for epoch, steps in first_steps.items()
        }
        self._starts_s = [starts_s[window.epoch].get(window.first_step) for window in known]
        self._ends_s = _ascending_ends_s(known)
        self._begins_s = self._ascending_begins_s()

    def step_after(self, at_s: float) -> tuple[int, int] | None:
        """Epoch and number of the first step that started at a Unix time or later.

        None for a time more than an hour before the first run that is known.
        """
        at = bisect_right(self._begins_s, at_s) - 1
        if at < 0:
            first = self._windows[0]
            is_near = at_s >= self._begins_s[0] - _BEFORE_RUN_S
            return (first.epoch, first.first_step) if is_near else None
        window = self._windows[at]
        step = self._step_within(at, at_s)
        if step is not None and step <= window.last_step:
            return window.epoch, step
        if at + 1 < len(self._windows):
            after = self._windows[at + 1]
            return after.epoch, after.first_step
        return window.epoch, window.last_step + 1

    def _step_within(self, at: int, at_s: float) -> int | None:
        """The first step of a window from a time on; None if all of them started before."""
        window = self._windows[at]
        if self._starts_s[at] is not None:
            numbers = range(window.first_step, window.last_step + 1)
            starts_s = windows.step_starts(self._conn, self._job_id, window.epoch, numbers)
            return min(
                (step for step, start_s in starts_s.items() if start_s >= at_s), default=None
            )
        begins_s, ends_s = self._begins_s[at], self._ends_s[at]
        share = (at_s - begins_s) / (ends_s - begins_s) if ends_s > begins_s else 0.0
        return window.first_step + int(share * (window.last_step - window.first_step + 1))

    def _ascending_begins_s(self) -> list[float]:
        """When each window began, in the order of the windows even where clocks disagree."""
        begins: list[float] = []
        for at, window in enumerate(self._windows):
            begins_s = self._starts_s[at]
            if begins_s is None:
                is_first = at == 0 or self._windows[at - 1].epoch != window.epoch
                run_s = self._run_begins_s.get(window.epoch, self._ends_s[at])
                begins_s = run_s if is_first else self._ends_s[at - 1]
            begins.append(begins_s)
        return list(accumulate(begins, max))


def _ascending_ends_s(known: Sequence[WindowSummary]) -> list[float]:
    """When each window was analysed; one that was revised late counts as not after the next."""
    newest_first = (window.updated_s for window in reversed(known))
    return [*accumulate(newest_first, min)][::-1]


def annotations_before(
    finding: Finding, epoch: int | None, placed: Sequence[PlacedAnnotation]
) -> tuple[NearAnnotation, ...]:
    """Annotations at most MAX_STEPS_AFTER steps before a finding's onset, the nearest first.

    That is near in time, and no proof of a cause: `sentence` says no more.
    """
    onset = finding.onset_step
    if onset is None:
        return ()
    near = [
        (onset - place.step, place.annotation)
        for place in placed
        if place.step is not None
        and place.epoch == epoch
        and 0 <= onset - place.step <= MAX_STEPS_AFTER
    ]
    return tuple(
        NearAnnotation(
            annotation_id=annotation.annotation_id,
            kind=annotation.kind,
            steps_after=num_steps,
            sentence=_sentence(num_steps, annotation),
        )
        for num_steps, annotation in sorted(near, key=lambda pair: pair[0])
    )


def _sentence(num_steps: int, annotation: Annotation) -> str:
    when = "in the step of" if num_steps == 0 else f"{formatting.plural(num_steps, 'step')} after"
    text = annotation_text(annotation)
    return f"Begins {when}: {text}. This is a match in time, not a proven cause."


def with_annotations(result: WindowResult, placed: Sequence[PlacedAnnotation]) -> WindowResult:
    """The result with `after` at each finding that begins shortly after an annotation."""
    if not result.findings or not placed:
        return result
    findings = tuple(
        replace(finding, after=annotations_before(finding, result.window.epoch, placed) or None)
        for finding in result.findings
    )
    return replace(result, findings=findings)
