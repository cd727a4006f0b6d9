"""Predicted fixes and what they achieved: of one job, of all jobs, and to be followed from now on.

Paceline follows the top fix of a straggling window by itself; people add others here.
"""

from typing import Annotated, Literal

from fastapi import Query
from msgspec.structs import replace
from pydantic import Field

from app.advice.advise import METHODS, fix_record, withheld_because
from app.advice.facts import facts_of
from app.advice.fix import AdviceCase, Fix
from app.advice.outcome import Prediction, State, prediction_of
from app.advice.signs import followed_window
from app.api.http import fields
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import ApiRouter, CallerDep, JobKey, PageOut, ServiceDep, refusals
from app.api.routes.windows.advice import FactsAsked
from app.api.service.replays import WindowKey, window_key
from app.api.service.service import Service
from app.engine.questions.edits import edits_as_json
from app.errors import Conflict, InvalidRequest
from app.monitor import stored_advice_case
from app.store import fixes
from app.store.database import Connection
from app.store.fixes import FixRecord
from app.trace.job import job_of

router = ApiRouter("jobs")


class TrackFixIn(fields.RequestModel, FactsAsked):
    """A fix to follow, and what only the job's owner knows of it."""

    window: str = Field(
        pattern=fields.WINDOW_PATTERN,
        description="The newest closed window of the current run, which the fix is predicted for: "
        "`latest`, or its id.",
        examples=["3-64"],
    )
    fix: str = Field(
        max_length=64,
        description="Name of a fix that `GET .../advice` offers.",
        examples=["resplit-stages"],
    )


class TrackedFixOut(fields.ResponseModel):
    """A prediction and its outcome.

    Both speed-ups are ratios of mean simulated steps, so launch delays are in neither.
    """

    fix_id: str
    job_id: fields.JobName
    fix: str = Field(description="Name of the fix.", examples=["resplit-stages"])
    title: str = Field(examples=["Give the stages 13/11/9/3 layers, not 9/9/9/9"])
    sentence: str = Field(
        description="Prediction and outcome in one sentence.",
        examples=["re-split at step 4,120: predicted 1.18\u00d7, achieved 1.16\u00d7"],
    )
    state: Literal["open", "applied", "measured", "gone", "not-comparable", "expired"] = Field(
        description="`open`: not noticed so far. `applied`: being measured. Final: `measured`; "
        "`gone`, the cause went away by itself; `not-comparable`, the job became another one; "
        "`expired`, another fix was applied since, or 30 days passed since its last prediction."
    )
    tracked_by: str | None = Field(
        description="Who wants it followed; null: it was the top fix of the window."
    )
    window: str = Field(description="Id of the window that it was predicted for.")
    step_s_before: float = Field(
        validation_alias="before_s", description="Mean simulated step there, in seconds."
    )
    step_s: float = Field(description="Predicted mean step with the fix, in seconds.")
    step_range_s: list[float] = Field(description="Bounds of `step_s`, the shorter one first.")
    speed_up: float = Field(description="Predicted: `step_s_before` divided by `step_s`.")
    gpu_hours_per_day: float = Field(description="Predicted GPU-hours won in a day.")
    applied_epoch: int | None = Field(description="Run in which the fix was noticed, or null.")
    applied_step: int | None = Field(description="First step with the fix, or null.")
    achieved_speed_up: float | None = Field(
        validation_alias="achieved",
        description="`step_s_before` divided by the mean step of `windows`; null before the first.",
    )
    windows: list[str] = Field(description="Ids of the windows that are measured, at most three.")
    note: str | None = Field(description="What limits the comparison; null if nothing does.")
    notified: bool | None = Field(
        description="Whether receivers were notified; null if they are not to be."
    )
    predicted_at: fields.UnixTime = Field(
        validation_alias="predicted_s", description="When it was predicted first."
    )
    updated_at: fields.UnixTime = Field(validation_alias="updated_s")

    @classmethod
    def of(cls, record: FixRecord, now_s: float) -> "TrackedFixOut":
        """From the stored prediction."""
        tracked = record.tracked
        measured = () if tracked.applied_step is None else tracked.windows
        return cls.of_record(
            record,
            record.prediction,
            tracked,
            state=record.state_at(now_s),
            window=f"{tracked.epoch}-{tracked.first_step}",
            windows=[window.window_id for window in measured],
            notified=None if record.notice is None else record.notice == "notified",
        )


class TrackedFixesOut(PageOut[TrackedFixOut]):
    """A page of predictions, the newest first."""


StateQuery = Annotated[
    State | None, Query(description="Only predictions in this state.", examples=["measured"])
]
FixId = Annotated[str, fields.hex_id("prediction")]


def _page(
    service: Service,
    project: str,
    job_id: str | None,
    state: State | None,
    cursor: str | None,
    limit: int,
) -> TrackedFixesOut:
    now_s = service.now_s()
    with service.store.read() as conn:
        records, next_cursor = fixes.page(
            conn, project, job_id=job_id, state=state, now_s=now_s, cursor=cursor, limit=limit
        )
    items = [TrackedFixOut.of(record, now_s) for record in records]
    return TrackedFixesOut(items=items, next_cursor=next_cursor)


@router.get("/fixes", summary="List predicted fixes of all jobs and what they achieved")
def list_fixes(
    service: ServiceDep,
    caller: CallerDep,
    state: StateQuery = None,
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> TrackedFixesOut:
    """Predictions for the project's jobs, newest first, a page at a time."""
    return _page(service, caller.project, None, state, cursor, limit)


@router.get("/jobs/{job_id}/fixes", summary="List a job's predicted fixes and what they achieved")
def list_fixes_of_job(
    job_id: JobKey,
    service: ServiceDep,
    caller: CallerDep,
    state: StateQuery = None,
    cursor: fields.Cursor = None,
    limit: fields.Limit = 100,
) -> TrackedFixesOut:
    """Predictions, newest first, a page at a time."""
    return _page(service, caller.project, job_id, state, cursor, limit)


@router.post(
    "/jobs/{job_id}/fixes",
    summary="Follow a fix: compare its prediction with what it achieves",
    status_code=201,
    responses=refusals(409),
)
def track_fix(
    job_id: JobKey, given: TrackFixIn, service: ServiceDep, caller: CallerDep
) -> TrackedFixOut:
    """Predicts the fix for the newest closed window of the run, and looks for it in all later ones.

    An open prediction of the same fix is replaced. The top fix of a straggling window is followed
    without asking.
    """
    case = _case(service, job_id, given)
    prediction = _prediction(case, given.fix)
    with service.store.write() as conn:
        now_s = service.now_s()
        record = fixes.save_prediction(
            conn, job_id, prediction, now_s=now_s, tracked_by=caller.name
        )
        detail = {"job": job_of(job_id), "fix": given.fix, "window": case.replay.window.id}
        write_audit(conn, caller, "fix.track", record.fix_id, now_s=now_s, **detail)
    service.announce_job(job_id)
    return TrackedFixOut.of(record, now_s)


def _case(service: Service, job_id: str, given: TrackFixIn) -> AdviceCase:
    """The window with its stored findings and the given facts; raises as the route does."""
    facts = facts_of(**{name: getattr(given, name) for name in FactsAsked.model_fields})
    if given.fix not in {method.name for method in METHODS}:
        names = ", ".join(method.name for method in METHODS)
        raise InvalidRequest(f"fix: no fix is called {given.fix!r}: there are {names}")
    with service.store.read() as conn:
        key = _newest_window(conn, job_id, given.window)
    replay = service.replays.get(job_id, key.window_id)
    result = service.results.get(service.store, job_id, key.window_id)
    return stored_advice_case(replay, result, facts)


def _newest_window(conn: Connection, job_id: str, window_id: str) -> WindowKey:
    """Key of this window; raises Conflict unless it is the newest closed one of the current run.

    In an older one, a fix that was applied since would seem to be applied now.
    """
    asked, newest = (window_key(conn, job_id, name) for name in (window_id, "latest"))
    if asked.window_id != newest.window_id:
        raise Conflict(
            "a fix is followed from the newest closed window of the current run, "
            f"{newest.window_id}, not from {window_id}: ask for that one, or for latest"
        )
    return newest


def _prediction(case: AdviceCase, name: str) -> Prediction:
    """The fix of this name, to be followed; raises Conflict if it cannot be."""
    fix, window = _predicted(case, name), case.replay.window
    prediction = None
    followed = followed_window(window, case.result, is_trusted=True)
    if followed is not None:
        # All edits, also more than a question may have: they say how the stages change.
        edits = tuple(edits_as_json(fix.change.edits))
        prediction = prediction_of(replace(fix_record(fix), what_if=edits), followed)
    if prediction is None:
        raise Conflict(
            f"{name} cannot be followed from window {window.id}: either ranks are missing in "
            "it, or no recorded operation would show that the fix was applied"
        )
    return prediction


def _predicted(case: AdviceCase, name: str) -> Fix:
    """The fix of this name; raises Conflict, with what it would need, if it is not offered."""
    reason = withheld_because(case)
    if reason is not None:
        raise Conflict(f"{name}: {reason}")
    method = next(method for method in METHODS if method.name == name)
    offer = method.predict(case)
    if isinstance(offer, Fix):
        return offer.with_error(case.discrepancy, case.step_error_s)
    texts = ", ".join(need.text for need in offer.needs)
    needs = f"; it needs {texts}" if texts else ""
    raise Conflict(f"{name}: {offer.reason}{needs}")


@router.delete(
    "/jobs/{job_id}/fixes/{fix_id}", summary="Delete a prediction, and its outcome", status_code=204
)
def delete_fix(job_id: JobKey, fix_id: FixId, service: ServiceDep, caller: CallerDep) -> None:
    """The fix is no longer followed.

    The top fix of a later straggling window is followed all the same.
    """
    with service.store.write() as conn:
        fix = fixes.remove(conn, job_id, fix_id)
        detail = {"job": job_of(job_id), "fix": fix}
        write_audit(conn, caller, "fix.delete", fix_id, now_s=service.now_s(), **detail)
    service.announce_job(job_id)
